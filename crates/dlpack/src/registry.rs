//! Which tensors are held just now, so that none is taken in twice.

use std::collections::BTreeSet;

use parking_lot::Mutex;

static HELD: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Notes a tensor; `false` where it is held already.
pub(crate) fn insert(address: usize) -> bool {
    HELD.lock().insert(address)
}

/// Forgets a tensor, before its memory can become another one's.
pub(crate) fn remove(address: usize) {
    if transload_core::mutant!("dlpack/address-forgotten") {
        return;
    }
    HELD.lock().remove(&address);
}
