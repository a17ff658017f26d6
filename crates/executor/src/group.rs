//! Counts of what is under way, for draining.

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

/// What is under way of one group: tasks that have not ended, blocking calls, helpers.
#[derive(Debug, Default)]
pub(crate) struct Group {
    live: AtomicUsize,
    lock: Mutex<()>,
    quiet: Condvar,
}

impl Group {
    /// Blocks until nothing is under way.
    pub(crate) fn drain(&self) {
        let mut lock = self.lock.lock();
        while self.live.load(Ordering::Acquire) > 0 {
            self.quiet.wait(&mut lock);
        }
    }
}

/// One count in a group and in the executor, until it is dropped.
pub(crate) struct Live {
    group: Arc<Group>,
    workers: Arc<Workers>,
}

impl Live {
    pub(crate) fn new(group: &Arc<Group>, workers: &Arc<Workers>) -> Self {
        group.live.fetch_add(1, Ordering::Relaxed);
        workers.begun();
        Self { group: Arc::clone(group), workers: Arc::clone(workers) }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.group.live.fetch_sub(1, Ordering::AcqRel) == 1 && !transload_core::mutant!("executor/quiet") {
            // With the lock: a drain between its check and its wait must not miss this.
            drop(self.group.lock.lock());
            self.group.quiet.notify_all();
        }
        self.workers.ended();
    }
}

/// A thread of the caller's that does work of the executor's tasks. [`Executor::drain`](crate::Executor::drain) waits until
/// it is dropped, and is refused on this thread meanwhile.
#[must_use = "the helper counts until this is dropped"]
pub struct Helping {
    _live: Live,
    /// It marks a thread.
    _stays: PhantomData<Cell<*const ()>>,
}

impl Helping {
    pub(crate) fn new(live: Live) -> Self {
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
