//! What the program is linked with, and what it exports: nothing of CUDA.
#![cfg(target_os = "linux")]

use std::process::Command;

use crate::has;

const PROGRAM: &str = env!("CARGO_BIN_EXE_transload");

#[test]
fn the_program_does_not_link_the_cuda_driver() {
    if has("ldd") {
        let output = Command::new("ldd").arg(PROGRAM).output().unwrap();
        let libraries = String::from_utf8(output.stdout).unwrap();
        assert!(libraries.contains("libc."), "{libraries}");
        assert!(!libraries.contains("libcuda"), "{libraries}");
    }
}

#[test]
fn the_program_exports_no_function_of_the_driver() {
    if has("nm") {
        let output = Command::new("nm").args(["-D", "--defined-only", PROGRAM]).output().unwrap();
        assert!(output.status.success());
        let symbols = String::from_utf8(output.stdout).unwrap();
        let driver = symbols.lines().filter_map(|line| line.split_whitespace().last()).find(|name| {
            name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
        });
        assert_eq!(driver, None);
    }
}
