//! What streams promise, on the software driver and on a real one (`TRANSLOAD_TEST_DRIVER=real`).
#![cfg(any(target_os = "linux", windows))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail their tests"
)]

mod allocator;
mod allocator_across;
mod allocator_bad_use;
mod allocator_buffers;
mod allocator_capture;
mod allocator_captured;
mod allocator_random;
mod allocator_short;
mod callbacks;
mod capture;
mod completion;
mod coordinator;
mod copies;
mod examples;
mod foreign;
mod gate;
mod graphs;
mod in_place;
mod launch;
mod launch_executor;
mod launch_time;
mod metrics;
mod order;
mod pool;
mod pool_optimizer;
mod pool_ready;
mod raw_forms;
mod reactor;
mod runs;
mod setup;
mod streams;
mod wait_fences;
