//! Errors of destructors, recorded instead of lost or reported by an unrelated call.

use parking_lot::Mutex;

use crate::DriverError;

/// Maximum number of errors kept. Later ones are dropped, since the first cause matters most.
const KEPT: usize = 64;

static ERRORS: Mutex<Vec<DriverError>> = Mutex::new(Vec::new());

/// Records an error that occurred in a destructor.
pub fn record_drop_error(result: Result<(), DriverError>) {
    if let Err(error) = result {
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
