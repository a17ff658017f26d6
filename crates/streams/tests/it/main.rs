//! Tests of streams, on the software driver and on a real one (`TRANSLOAD_TEST_DRIVER=real`).
#![cfg(any(target_os = "linux", windows))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail their tests"
)]

mod allocator;
mod coordinator;
mod examples;
mod graphs;
mod launch;
mod ops;
mod pool;
mod prefetch;
mod stream;
mod support;
mod unified;
