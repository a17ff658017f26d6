//! Every interleaving of the crate's small concurrent state machines that loom finds with two preemptions. The files under
//! test are included as they are, with loom's primitives for std's.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod durations;
mod order;
mod runs;
mod sync;
#[path = "watch.rs"]
mod watch_model;

#[path = "../../src/ends.rs"]
mod ends;

#[path = "../../src/line.rs"]
#[allow(dead_code, reason = "a stream uses more of it")]
mod line;

#[path = "../../src/slot.rs"]
mod slot;

#[path = "../../src/wakers.rs"]
#[allow(dead_code, reason = "the reactor uses more of it")]
mod wakers;

#[path = "../../src/watch.rs"]
#[allow(dead_code, reason = "the reactor uses more of it")]
mod watch;

#[path = "../../src/points.rs"]
#[allow(dead_code, reason = "a model uses what it is about")]
mod points;

/// Runs a model with at most two preemptions.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(body);
}
