//! The primitives of the sleep protocol: std's and parking_lot's, replaced by loom's in `tests/loom`.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering, fence};

pub(crate) use parking_lot::Mutex;
use parking_lot::MutexGuard;

/// Like parking_lot's, but waiting takes and returns the guard, as in std.
#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(&mut guard);
        guard
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
