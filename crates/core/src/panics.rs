//! Catches panics of the caller's code, so that each ends only the call in which it happens.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::{Error, ErrorKind, Result, events};

/// Runs `body` and returns its result.
///
/// # Errors
/// [`ErrorKind::Interrupted`] with the message if it panics.
pub fn catch_panic<T>(body: impl FnOnce() -> T) -> Result<T> {
    let panicked = |payload| {
        let text = panic_text(payload);
        events::report::panic_caught(&text);
        Error::new(ErrorKind::Interrupted, format!("panicked: {text}"))
    };
    catch_unwind(AssertUnwindSafe(body)).map_err(panicked)
}

/// Returns a panic's message.
#[must_use]
pub fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "a payload without text".to_owned(),
    };
    // Dropping the payload may panic, too, and so may the drop of that panic's payload, which is leaked.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
    text
}
