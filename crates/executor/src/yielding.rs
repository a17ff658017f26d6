//! Going to the back of the queue.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// Returns a future that lets every task run that is ready now, and then goes on.
pub fn yield_now() -> YieldNow {
    YieldNow(false)
}

/// See [`yield_now`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct YieldNow(bool);

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
