//! The observer of a runtime's manager: the caller's, and that of a profiler while there is one.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::RwLock;
use transload_core::{Error, ErrorKind, Observer, Result, TransferEvent, Wanted};

use super::trace_variable;

/// Passes events on. Without a profiler it costs one relaxed load.
#[derive(Default)]
pub(crate) struct ObserverSlot {
    own: Option<Arc<dyn Observer>>,
    is_attached: AtomicBool,
    profiler: RwLock<Option<Arc<dyn Observer>>>,
}

impl ObserverSlot {
    /// Creates a slot that always passes events to `own`.
    pub(crate) fn new(own: Option<Arc<dyn Observer>>) -> Self {
        Self { own, ..Self::default() }
    }

    pub(crate) fn attach(&self, observer: Arc<dyn Observer>) -> Result<()> {
        let mut profiler = self.profiler.write();
        if profiler.is_some() {
            let text = match trace_variable() {
                Some(_) => "TRANSLOAD_TRACE has the runtime recorded; unset it to profile from the program",
                None => "the runtime is profiled; drop that profiler first",
            };
            return Err(Error::new(ErrorKind::Busy, text));
        }
        *profiler = Some(observer);
        self.is_attached.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Detaches `observer`, if it is the one that is attached.
    pub(crate) fn detach(&self, observer: &Arc<dyn Observer>) {
        let mut profiler = self.profiler.write();
        if profiler.as_ref().is_some_and(|attached| Arc::ptr_eq(attached, observer)) {
            self.is_attached.store(false, Ordering::Relaxed);
            if !transload_core::mutant!("transload/profiler-detached") {
                *profiler = None;
            }
        }
    }

    /// Calls the profiler's observer, if there is one. It is not detached meanwhile.
    fn with_profiler<R>(&self, call: impl FnOnce(&dyn Observer) -> R) -> Option<R> {
        if !self.is_attached.load(Ordering::Relaxed) {
            return None;
        }
        self.profiler.read().as_deref().map(call)
    }
}

impl Observer for ObserverSlot {
    fn transfer(&self, event: TransferEvent<'_>) {
        if let Some(own) = &self.own {
            own.transfer(event);
        }
        self.with_profiler(|profiler| profiler.transfer(event));
    }

    /// Both are told of what either wants; a profiler leaves aside what it does not.
    fn wants(&self, bytes: u64) -> Wanted {
        let own = self.own.as_ref().map_or(Wanted::Failure, |own| own.wants(bytes));
        self.with_profiler(|profiler| profiler.wants(bytes)).map_or(own, |theirs| theirs.max(own))
    }
}
