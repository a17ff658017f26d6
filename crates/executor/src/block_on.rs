//! Blocking on a future, without an async runtime.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake},
    thread::{self, Thread},
};

use transload_core::Result;

use crate::workers::refuse_to_block;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on the calling thread, which sleeps while the future waits.
///
/// # Errors
/// [`ErrorKind::Unsupported`](transload_core::ErrorKind::Unsupported) on a worker of any executor, which must not block: await
/// the future there.
pub fn block_on<F: Future>(future: F) -> Result<F::Output> {
    refuse_to_block()?;
    let waker = Arc::new(Unpark(thread::current())).into();
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return Ok(output),
            Poll::Pending => thread::park(),
        }
    }
}
