//! Values of the variable `TRANSLOAD_CUDA_DRIVER`. A process loads one driver for good, so the test runs itself again
//! for each case.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::expect_used, reason = "helpers of tests fail their tests")]

#[path = "../../streams/tests/it/support/programs.rs"]
#[allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]
mod programs;

use std::env;

use transload_cuda_sys::Driver;

const CHILD: &str = "TRANSLOAD_TEST_CHILD";

/// Returns what a process with this value of the variable prints about its driver.
fn with_variable(value: &str) -> String {
    let output = programs::this_program()
        .args(["--exact", "driver_variable_must_name_a_driver", "--nocapture"])
        .env(CHILD, "1")
        .env("TRANSLOAD_CUDA_DRIVER", value)
        .output()
        .expect("start");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn driver_variable_must_name_a_driver() {
    if env::var_os(CHILD).is_some() {
        match Driver::get() {
            Ok(driver) => println!("found {}", driver.origin()),
            Err(error) => println!("error: {error}"),
        }
        return;
    }
    let usual = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
    let said = with_variable("");
    let is_usual = said.contains(usual) || said.contains("no device");
    assert!(is_usual && !said.contains("tried :"), "an empty variable counts as not set: {said}");

    let other = if cfg!(windows) { "kernel32.dll" } else { "libm.so.6" };
    let said = with_variable(other);
    let expected = format!("no CUDA driver found; tried {other} is no CUDA driver (it has no cuInit)");
    assert!(said.contains(&expected), "{said}");
    assert!(!said.contains(usual), "a driver that was named is the only one tried: {said}");
}
