//! Which driver calls belong to which operation.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

use transload_core::OperationId;

use super::session;

/// Number of recordings of activities.
pub(super) static RECORDINGS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The thread's operation whose calls are made, or were made last.
    static CURRENT: Cell<Option<OperationId>> = const { Cell::new(None) };
}

/// Marks driver calls of the calling thread as those of an operation in the records of CUPTI. Kept by the thread, so that an operation that is not timed carries
/// nothing for it.
#[derive(Debug)]
pub enum OperationCalls {}

impl OperationCalls {
    /// Begins the calls of an operation, which gets an id if activities are recorded.
    #[cold]
    pub fn begin() {
        let id = (RECORDINGS.load(Ordering::Relaxed) > 0).then(OperationId::next);
        let is_begun =
            |id: &OperationId| session::library().is_some_and(|cupti| cupti.push_operation(id.get()));
        CURRENT.set(id.filter(is_begun));
    }

    /// Ends the calls that [`begin`](Self::begin) began last, and returns the id.
    #[cold]
    pub fn end() -> Option<OperationId> {
        let id = CURRENT.get()?;
        if !transload_core::mutant!("memory/operation-calls-end") {
            session::library()?.pop_operation();
        }
        Some(id)
    }

    /// Returns the id of the operation whose calls were ended last, once.
    #[must_use]
    #[cold]
    pub fn take() -> Option<OperationId> {
        CURRENT.take()
    }
}
