//! Errors that a destructor met are kept here instead of being lost or surfacing later on an unrelated call.

use parking_lot::Mutex;

use crate::DriverError;

/// How many errors are kept; later ones are dropped, the first cause matters most.
const KEPT: usize = 64;

static ERRORS: Mutex<Vec<DriverError>> = Mutex::new(Vec::new());

/// Records an error that cannot be returned because it occurred while dropping a handle.
pub fn record_drop_error(result: Result<(), DriverError>) {
    if let Err(error) = result {
        let mut errors = ERRORS.lock();
        if errors.len() < KEPT {
            errors.push(error);
        }
    }
}

/// Takes the errors recorded since the last call, oldest first (at most 64 are kept).
#[must_use]
pub fn take_drop_errors() -> Vec<DriverError> {
    std::mem::take(&mut *ERRORS.lock())
}
