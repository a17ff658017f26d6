//! Room in a device's queue: a driver's call blocks while its launch queue is full.

use crate::{Fence, Queue};

/// Most operations in flight on a device's queue before a task, or a thread of the library, enqueues no more. A driver's launch queue
/// holds about a thousand entries, and an operation takes up to three: its wait, itself and its event.
const MAX_OUTSTANDING: u64 = 256;

/// Returns whether a driver's call that enqueues might block, with so many operations in flight on a device's queue.
#[must_use]
pub fn may_be_full(outstanding: u64) -> bool {
    outstanding >= MAX_OUTSTANDING
}

/// If an operation enqueued now might block in the driver because the queue is full, returns a fence after which the queue has room
/// again. Half of it then, so that not everyone who waits is woken for each operation that ends.
#[must_use]
pub fn full_until(queue: &dyn Queue) -> Option<Fence> {
    if !may_be_full(queue.outstanding()) || queue.device().is_cpu() {
        return None;
    }
    let timeline = queue.timeline();
    // In this order, so that the point is one that was issued.
    let reached = timeline.reached();
    let excess = queue.outstanding().checked_sub(MAX_OUTSTANDING / 2)?;
    Some(Fence::new(timeline.clone(), reached.saturating_add(excess)))
}
