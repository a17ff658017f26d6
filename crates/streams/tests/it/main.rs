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
mod contexts;
mod coordinator;
mod copies;
#[path = "../../../core/tests/shared/gate.rs"]
mod elsewhere;
mod examples;
#[path = "../../../memory/tests/it/failing.rs"]
#[allow(dead_code, reason = "shared with the tests of resources")]
mod failing;
mod fills;
mod foreign;
mod freeing;
mod gate;
mod graphs;
#[path = "../../../memory/tests/it/heap.rs"]
#[allow(dead_code, reason = "shared with the tests of memory")]
mod heap;
mod hints;
mod hints_beside;
mod in_place;
mod launch;
mod launch_executor;
mod launch_time;
mod lent_in_flight;
mod metrics;
mod order;
mod pinned_pool;
mod pool;
mod pool_optimizer;
mod pool_ready;
mod pool_runs;
mod pool_split;
mod prediction;
mod prediction_of_launches;
mod prediction_passed_over;
mod programs;
mod raw_forms;
mod reactor;
mod registered;
mod run_ahead;
mod run_ahead_across;
mod runs;
mod setup;
mod shifted;
mod streams;
mod unified;
mod wait_fences;
mod whereabouts;
