//! Errors of destructors, recorded instead of lost or reported by an unrelated call.

use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::DriverError;

/// Maximum number of errors kept. Later ones are dropped, since the first cause matters most.
const KEPT: usize = 64;

static ERRORS: Mutex<Vec<DriverError>> = Mutex::new(Vec::new());
static OBSERVER: OnceLock<fn(&DriverError)> = OnceLock::new();

/// Sets a function that gets each such error when it occurs. Only the first one set takes effect. It is called in destructors, possibly
/// under locks, so it must not block, panic or use this library.
pub fn observe_drop_errors(observer: fn(&DriverError)) {
    let _the_first_one_stays = OBSERVER.set(observer);
}

/// Records an error that occurred in a destructor.
pub fn record_drop_error(result: Result<(), DriverError>) {
    if let Err(error) = result {
        if let Some(observer) = OBSERVER.get() {
            observer(&error);
        }
        let mut errors = ERRORS.lock();
        if errors.len() < KEPT {
            errors.push(error);
        }
    }
}

/// Takes the errors recorded since the last call, oldest first (at most 64).
#[must_use]
pub fn take_drop_errors() -> Vec<DriverError> {
    std::mem::take(&mut *ERRORS.lock())
}
