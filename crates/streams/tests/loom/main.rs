//! Loom models of the crate's concurrent state machines, with two preemptions. The files under test are included unchanged,
//! with loom's primitives instead of std's.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod durations;
mod order;
mod runs;
mod sync;
#[path = "watch.rs"]
mod watch_model;

#[path = "../../src/completion/stream_events.rs"]
mod stream_events;

#[path = "../../src/completion/pending_events.rs"]
#[allow(dead_code, reason = "a stream uses more of it")]
mod pending_events;

#[path = "../../src/completion/slot.rs"]
mod slot;

#[path = "../../src/completion/wakers.rs"]
#[allow(dead_code, reason = "the reactor uses more of it")]
mod wakers;

#[path = "../../src/completion/registration.rs"]
#[allow(dead_code, reason = "the reactor uses more of it")]
mod registration;

#[path = "../../src/completion/points.rs"]
#[allow(dead_code, reason = "a model uses what it is about")]
mod points;

/// Runs a model with at most two preemptions.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(body);
}
