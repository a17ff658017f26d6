//! Going to the back of the queue.

use std::{future::poll_fn, mem, task::Poll};

/// Lets every task run that is ready now, and then goes on.
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
