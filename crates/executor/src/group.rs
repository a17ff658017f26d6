//! Counts of live tasks and calls, for draining.

use std::{
    cell::Cell,
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::{Condvar, Mutex};

use crate::workers::{self, Workers};

/// Count of one group's live tasks, blocking calls and helpers.
#[derive(Debug, Default)]
pub(crate) struct Group {
    live: AtomicUsize,
    lock: Mutex<()>,
    quiet: Condvar,
}

impl Group {
    /// Blocks until the count is 0.
    pub(crate) fn drain(&self) {
        let mut lock = self.lock.lock();
        while self.live.load(Ordering::Acquire) > 0 {
            self.quiet.wait(&mut lock);
        }
    }
}

/// Counts once in a group and in the executor until it is dropped.
pub(crate) struct LiveGuard {
    group: Arc<Group>,
    workers: Arc<Workers>,
}

impl LiveGuard {
    pub(crate) fn new(group: &Arc<Group>, workers: &Arc<Workers>) -> Self {
        group.live.fetch_add(1, Ordering::Relaxed);
        workers.begun();
        Self { group: Arc::clone(group), workers: Arc::clone(workers) }
    }
}

impl Drop for LiveGuard {
    fn drop(&mut self) {
        if self.group.live.fetch_sub(1, Ordering::AcqRel) == 1 && !transload_core::mutant!("executor/quiet") {
            // Locks first, so that a drain between its check and its wait does not miss this.
            drop(self.group.lock.lock());
            self.group.quiet.notify_all();
        }
        self.workers.ended();
    }
}

/// A guard that counts the calling thread as doing work of the executor's tasks. [`Executor::drain`](crate::Executor::drain)
/// waits until it is dropped, and is refused on this thread meanwhile.
#[must_use = "the helper counts until this is dropped"]
pub struct Helping {
    _live: LiveGuard,
    /// Not `Send`: it belongs to a thread.
    _stays: PhantomData<Cell<*const ()>>,
}

impl Helping {
    pub(crate) fn new(live: LiveGuard) -> Self {
        workers::enter();
        Self { _live: live, _stays: PhantomData }
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        workers::leave();
    }
}

impl std::fmt::Debug for Helping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Helping")
    }
}
