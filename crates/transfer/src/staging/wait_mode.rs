//! How the code that copies chunks waits: asynchronously in a task, blocking on a thread that waits for the transfer.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    thread,
};

use transload_core::{Fence, Queue, Result, full_until};
use transload_executor::Executor;

use super::StagedTimeline;

/// How the caller waits.
#[derive(Clone, Copy)]
pub(super) enum WaitMode<'a> {
    /// By wakers, without blocking a thread.
    Task(&'a Executor),
    /// By blocking a user's thread that waits for this transfer.
    Thread,
}

impl WaitMode<'_> {
    /// Waits until the fence is complete.
    ///
    /// # Errors
    /// The error of the fence's work.
    pub(super) async fn fence(self, fence: &Fence) -> Result<()> {
        match self {
            // Wakes by itself; there is no driver to poll.
            Self::Task(_) if fence.timeline().as_any().is::<StagedTimeline>() => fence.done().await,
            Self::Task(executor) => executor.fence(fence).await,
            Self::Thread => fence.wait(),
        }
    }
}

/// Returns whether a queue has room for another operation.
pub(super) fn has_room(queue: &dyn Queue) -> bool {
    full_until(queue).is_none() || transload_core::mutant!("transfer/unbounded-queue")
}

/// Waits until a queue has room for another operation.
pub(super) async fn room(queue: &dyn Queue, waits: WaitMode<'_>) {
    if let Some(fence) = full_until(queue) {
        // A failed operation is reported by its own transfer.
        let _over = waits.fence(&fence).await;
    }
}

/// Runs a future that waits by [`WaitMode::Thread`], and is pending only while other threads copy parts of its chunk.
pub(super) fn block_on_thread<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::yield_now(),
        }
    }
}
