//! The transfer for which the calling thread submits operations.

use std::{cell::Cell, marker::PhantomData};

use crate::TransferId;

thread_local! {
    static CURRENT: Cell<Option<TransferId>> = const { Cell::new(None) };
}

/// While it lives, operations that the calling thread enqueues belong to a transfer; see
/// [`OperationRecord::transfer`](crate::OperationRecord::transfer). Methods create one around what they enqueue for a transfer that has an id.
#[derive(Debug)]
#[must_use = "dropping it ends the scope"]
pub struct TransferScope {
    before: Option<TransferId>,
    _of_this_thread: PhantomData<*const ()>,
}

impl TransferScope {
    /// Begins a scope. Without an id there is nothing to record, and none is begun.
    #[inline]
    pub fn enter(id: Option<TransferId>) -> Option<Self> {
        id.map(|id| Self { before: CURRENT.replace(Some(id)), _of_this_thread: PhantomData })
    }

    /// Returns the transfer of the calling thread's innermost scope.
    #[must_use]
    pub fn current() -> Option<TransferId> {
        CURRENT.get()
    }
}

impl Drop for TransferScope {
    fn drop(&mut self) {
        if !crate::mutant!("core/scope-restored") {
            CURRENT.set(self.before);
        }
    }
}
