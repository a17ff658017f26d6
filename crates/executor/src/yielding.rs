//! Yielding to other tasks.

use std::{future::poll_fn, mem, task::Poll};

/// Yields until every task that is ready now has run.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
