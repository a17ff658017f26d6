//! Code of other crates and of users: a panic in it ends that call and nothing else.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Calls it. A panic is dropped, and what its payload panics with as well.
pub(crate) fn contained(call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        // To drop it is foreign code, too.
        std::mem::forget(payload);
    }
}

/// Returns what a panic said. Its payload may panic in turn when it is dropped.
pub(crate) fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned());
    contained(|| drop(payload));
    text
}
