//! Panics of the caller's code, turned into errors.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Poll, Waker},
};

use transload_core::{Error, ErrorKind, Result, catch_panic};

/// Drops a value of the caller's, whose destructor may panic.
pub(crate) fn discard<T>(value: T) {
    let _panic = catch_panic(|| drop(value));
}

/// Wakes, and discards a panic of the waker.
pub(crate) fn wake(waker: Waker) {
    let _panic = catch_panic(|| waker.wake());
}

/// Drops what it pins, without a panic.
struct Clear<'a, F>(Pin<&'a mut Option<F>>);

impl<F> Drop for Clear<'_, F> {
    fn drop(&mut self) {
        let _panic = catch_panic(|| self.0.set(None));
    }
}

/// Runs a future; a panic of it or of its destructor ends here.
pub(crate) async fn guarded<F: Future>(future: F) -> Result<F::Output> {
    let mut slot = Clear(pin!(Some(future)));
    poll_fn(|context| {
        let polled = catch_panic(|| match slot.0.as_mut().as_pin_mut() {
            Some(future) => future.poll(context).map(Ok),
            None => Poll::Ready(Err(Error::new(ErrorKind::Interrupted, "the task has ended already"))),
        });
        polled.unwrap_or_else(|error| Poll::Ready(Err(error)))
    })
    .await
}
