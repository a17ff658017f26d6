//! Tests of the executor, one module per subject.

// Clippy's allowance for tests does not cover helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod blocking;
mod chains;
mod draining;
mod drop_queue;
mod fences;
mod gate;
mod one_of;
mod panics;
mod stress;
mod tasks;
mod threads;

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use transload_executor::Executor;

/// Time limit of a test.
const LIMIT: Duration = Duration::from_secs(120);

fn executor(threads: usize) -> Executor {
    Executor::with_threads(threads).unwrap()
}

/// Runs a test body on another thread, and fails with `place()` if it exceeds the time limit.
fn within_limit(place: impl Fn() -> String, body: impl FnOnce() + Send + 'static) {
    let (ended, end) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let _ended = ended;
        body();
    });
    match end.recv_timeout(LIMIT) {
        Err(RecvTimeoutError::Timeout) => panic!("stands still: {}", place()),
        _ => {
            if let Err(payload) = thread.join() {
                std::panic::resume_unwind(payload);
            }
        }
    }
}

/// Yields until `condition` holds; fails with `what` at the time limit.
fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "stands still: {what}");
        thread::yield_now();
    }
}
