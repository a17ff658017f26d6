//! Behaviour that CUDA documents: the same on the software driver and, with `TRANSLOAD_TEST_DRIVER=real`, on a real one
//! (with `--test-threads=1`: all tests share one context, and one frees memory twice).
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod beneath_cust;
mod copies;
mod devices;
mod early;
mod gate;
mod memory;
mod order;
#[allow(dead_code, reason = "shared with the tests that run on hardware")]
mod raw;
mod words;
