//! Panics of the caller's code, turned into errors.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::{Poll, Waker},
};

use transload_core::{Error, ErrorKind, Result};

/// Returns [`ErrorKind::Interrupted`] with the panic's message.
#[must_use]
pub fn panic_error(payload: &(dyn Any + Send)) -> Error {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text.as_str(),
        (None, None) => "a payload that is no text",
    };
    Error::new(ErrorKind::Interrupted, format!("panicked: {text}"))
}

/// Runs `body` and returns its result.
///
/// # Errors
/// [`ErrorKind::Interrupted`] with the message if it panics.
pub fn catch_panic<T>(body: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|payload| {
        let error = panic_error(&*payload);
        discard(payload);
        error
    })
}

/// Drops a value of the caller's, whose destructor may panic.
pub(crate) fn discard<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // Another destructor that may panic, and so on: the memory of such a payload is given up.
        std::mem::forget(payload);
    }
}

/// Wakes, and discards a panic of the waker.
pub(crate) fn wake(waker: Waker) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        discard(payload);
    }
}

/// Drops what it pins, without a panic.
struct Clear<'a, F>(Pin<&'a mut Option<F>>);

impl<F> Drop for Clear<'_, F> {
    fn drop(&mut self) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.0.set(None))) {
            discard(payload);
        }
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
