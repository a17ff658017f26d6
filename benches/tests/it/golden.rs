//! A driver call more than before shows in what `transload-golden` prints.

use std::process::Command;

const PLANTED_IN: &str = "copy pinned up, 4096 bytes, waited";

/// Returns what is said of an operation.
fn block(text: &str) -> Vec<&str> {
    text.lines().skip_while(|line| *line != PLANTED_IN).take_while(|line| !line.is_empty()).collect()
}

#[test]
fn planted_driver_call_is_found_and_named() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_transload-golden"));
    let output = program.arg("--planted-call").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (committed, now) = (include_str!("../../golden.txt"), String::from_utf8(output.stdout).unwrap());
    let (committed, now) = (block(committed), block(&now));
    assert!(committed.contains(&"  cuMemcpyHtoDAsync_v2 1") && now.contains(&"  cuMemcpyHtoDAsync_v2 1"));
    let is_it = |line: &&str| line.starts_with("  cuMemGetInfo_v2");
    assert_eq!(
        (committed.iter().find(|line| is_it(line)), now.iter().find(|line| is_it(line))),
        (None, Some(&"  cuMemGetInfo_v2 1"))
    );
}
