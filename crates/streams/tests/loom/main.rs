//! Models of the state that threads share, under every interleaving that loom finds with two preemptions.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

mod runs;

/// What `src/sync.rs` is to the crate.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

#[path = "../../src/points.rs"]
#[allow(dead_code, reason = "a model uses what it is about")]
mod points;

/// Runs a model with at most two preemptions.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(body);
}
