//! Stream capture: accepted, refused and invalidating calls. A test binary of its own, because a global capture affects
//! every thread of the process. With `TRANSLOAD_TEST_DRIVER=real` it runs on a real driver.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod forbidden;
mod graphs;
#[allow(dead_code, reason = "shared with the tests that run on hardware")]
#[path = "../it/raw.rs"]
mod raw;

use std::sync::{Mutex, MutexGuard, PoisonError};

use transload_cuda_sim::harness;

use crate::raw::Bench;

/// A device, and a lock that keeps other tests from capturing.
struct Alone {
    bench: Bench,
    _turn: MutexGuard<'static, ()>,
}

impl Alone {
    fn new() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Self { bench: Bench::new(harness::device()), _turn: turn }
    }

    /// Checks that nothing is alive and nothing raced.
    fn finish(self) {
        let Bench { device, context, end: _end } = self.bench;
        drop(context);
        device.assert_no_live_objects();
        device.assert_no_races();
    }
}
