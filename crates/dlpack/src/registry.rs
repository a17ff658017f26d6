//! Addresses of the tensors that this process owns, so that none is consumed twice.

use std::collections::BTreeSet;

use parking_lot::Mutex;

static HELD: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Adds a tensor. Returns `false` if it is registered already.
pub(crate) fn insert(address: usize) -> bool {
    HELD.lock().insert(address)
}

/// Removes a tensor. Call this before its deleter: the address may be reused then.
pub(crate) fn remove(address: usize) {
    if transload_core::mutant!("dlpack/address-forgotten") {
        return;
    }
    HELD.lock().remove(&address);
}
