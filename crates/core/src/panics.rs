//! Panics of the caller's code: each ends the call in which it happens, and nothing else.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::{Error, ErrorKind, Result};

/// Runs `body` and returns its result.
///
/// # Errors
/// [`ErrorKind::Interrupted`] with the message if it panics.
pub fn catch_panic<T>(body: impl FnOnce() -> T) -> Result<T> {
    let panicked = |payload| Error::new(ErrorKind::Interrupted, format!("panicked: {}", panic_text(payload)));
    catch_unwind(AssertUnwindSafe(body)).map_err(panicked)
}

/// Returns what a panic said.
#[must_use]
pub fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "a payload that is no text".to_owned(),
    };
    // A destructor that may panic, and so on: the memory of such a payload is given up.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
    text
}
