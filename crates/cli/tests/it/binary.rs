//! The program neither links nor exports CUDA functions.
#![cfg(target_os = "linux")]

use std::process::Command;

use crate::has;

/// Runs readelf, which supports every architecture.
fn read(what: &str) -> Option<String> {
    if !has("readelf") {
        return None;
    }
    let program = env!("CARGO_BIN_EXE_transload");
    let output = Command::new("readelf").args([what, "--wide", program]).output().unwrap();
    assert!(output.status.success());
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_program_does_not_link_the_cuda_driver() {
    let Some(sections) = read("--dynamic") else { return };
    let needed: Vec<&str> = sections.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(needed.iter().any(|line| line.contains("[libc.")), "{needed:?}");
    assert!(!needed.iter().any(|line| line.contains("libcuda")), "{needed:?}");
}

#[test]
fn the_program_exports_no_function_of_the_driver() {
    let Some(symbols) = read("--dyn-syms") else { return };
    let names: Vec<&str> = symbols.lines().filter_map(|line| line.split_whitespace().nth(7)).collect();
    assert!(names.iter().any(|name| name.starts_with("__libc_start_main")), "{symbols}");
    let driver = names.iter().find(|name| {
        name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    });
    assert_eq!(driver, None);
}
