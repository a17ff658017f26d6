//! Loom's version of `src/sync.rs`.

pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering, fence};

pub(crate) type Guard<'a, T> = loom::sync::MutexGuard<'a, T>;

/// Like parking_lot's: locking returns no error.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock().unwrap()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, guard: Guard<'a, T>) -> Guard<'a, T> {
        self.0.wait(guard).unwrap()
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
