//! What streams promise, on the software driver and on a real one (`TRANSLOAD_TEST_DRIVER=real`).
#![cfg(any(target_os = "linux", windows))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail their tests"
)]

mod capture;
mod completion;
mod copies;
mod gate;
mod in_place;
mod order;
mod pool;
mod pool_optimizer;
mod pool_ready;
mod setup;
mod streams;
