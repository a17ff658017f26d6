//! Exports and imports; with CUDA, on the software driver and on a real one (`TRANSLOAD_TEST_DRIVER=real`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail their tests"
)]

mod consumer_stream;
#[cfg(any(target_os = "linux", windows))]
mod cuda;
#[cfg(any(target_os = "linux", windows))]
mod examples;
mod exit;
mod exports;
#[cfg(any(target_os = "linux", windows))]
#[path = "../../../streams/tests/it/support/gate.rs"]
mod gate;
mod imports;
#[cfg(any(target_os = "linux", windows))]
mod memory_kinds;
#[cfg(any(target_os = "linux", windows))]
mod order_edge_cases;
mod ownership;
mod producer;
#[path = "../../../streams/tests/it/support/programs.rs"]
mod programs;
#[cfg(any(target_os = "linux", windows))]
mod setup;
#[cfg(any(target_os = "linux", windows))]
mod wrong_descriptions;
