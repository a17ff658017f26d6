//! Behaviour that CUDA documents for two devices, on the software driver and, with `TRANSLOAD_TEST_DRIVER=real`, on two
//! real ones.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod access;
mod copies;
#[path = "../it/raw.rs"]
#[allow(dead_code, reason = "shared with the tests of one device")]
mod raw;
