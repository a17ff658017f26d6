//! The text of the last error, of whichever thread.

use std::sync::{Mutex, PoisonError};

static LAST: Mutex<String> = Mutex::new(String::new());

pub(crate) fn set(text: String) {
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = text;
}

pub(crate) fn with<T>(look: impl FnOnce(&str) -> T) -> T {
    look(&LAST.lock().unwrap_or_else(PoisonError::into_inner))
}
