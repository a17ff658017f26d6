//! Which driver calls belong to which operation.

use std::sync::atomic::{AtomicUsize, Ordering};

use transload_core::OperationId;

use super::session;

/// Number of recordings of activities.
pub(super) static RECORDINGS: AtomicUsize = AtomicUsize::new(0);

/// While it lives, driver calls of the calling thread belong to an operation in the records of CUPTI. Must be dropped on its thread.
#[derive(Debug)]
pub struct OperationCalls {
    id: OperationId,
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

impl OperationCalls {
    /// Begins the calls of an operation that gets a new id; `None` if no activities are recorded.
    #[must_use]
    pub fn begin() -> Option<Self> {
        if RECORDINGS.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let id = OperationId::next();
        session::library()?
            .push_operation(id.get())
            .then_some(Self { id, _of_this_thread: std::marker::PhantomData })
    }

    /// Returns the operation's id.
    #[must_use]
    pub fn id(&self) -> OperationId {
        self.id
    }
}

impl Drop for OperationCalls {
    fn drop(&mut self) {
        if let Some(cupti) = session::library()
            && !transload_core::mutant!("memory/operation-calls-end")
        {
            cupti.pop_operation();
        }
    }
}
