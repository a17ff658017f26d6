//! Panics of the caller's code, turned into errors.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Poll, Waker},
};

use transload_core::{Error, ErrorKind, Result, catch_panic};

/// Drops a caller's value, and discards a panic of its destructor.
pub(crate) fn discard<T>(value: T) {
    let _panic = catch_panic(|| drop(value));
}

/// Calls a waker, and discards its panic.
pub(crate) fn wake(waker: Waker) {
    let _panic = catch_panic(|| waker.wake());
}

/// Drops the pinned value, and discards a panic.
struct DropGuard<'a, F>(Pin<&'a mut Option<F>>);

impl<F> Drop for DropGuard<'_, F> {
    fn drop(&mut self) {
        let _panic = catch_panic(|| self.0.set(None));
    }
}

/// Runs a future. Returns a panic of it as an error, and discards one of its destructor.
pub(crate) async fn guarded<F: Future>(future: F) -> Result<F::Output> {
    let mut slot = DropGuard(pin!(Some(future)));
    poll_fn(|context| {
        let polled = catch_panic(|| match slot.0.as_mut().as_pin_mut() {
            Some(future) => future.poll(context).map(Ok),
            None => Poll::Ready(Err(Error::new(ErrorKind::Interrupted, "the task has ended already"))),
        });
        polled.unwrap_or_else(|error| Poll::Ready(Err(error)))
    })
    .await
}
