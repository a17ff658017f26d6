//! Blocking on a future, without an async runtime.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake},
    thread::{self, Thread},
};

use transload_core::Result;

use crate::workers::refuse_to_block;

/// A thread that polls a future, and whether that was woken since. The thread's token alone does not tell: code that the future calls may park
/// the thread for reasons of its own.
struct Unpark {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: what was done before the wake-up is seen by the next poll.
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Runs a future on the calling thread, which sleeps while the future waits.
///
/// # Errors
/// [`ErrorKind::Unsupported`](transload_core::ErrorKind::Unsupported) on a worker of any executor, which must not block: await
/// the future there.
pub fn block_on<F: Future>(future: F) -> Result<F::Output> {
    refuse_to_block()?;
    let woken = Arc::new(Unpark { thread: thread::current(), is_woken: AtomicBool::new(false) });
    let waker = Arc::clone(&woken).into();
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return Ok(output),
            Poll::Pending => {
                while !woken.is_woken.swap(false, Ordering::Acquire) {
                    thread::park();
                }
            }
        }
    }
}
