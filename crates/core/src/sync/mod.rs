//! Synchronisation primitives: std's and parking_lot's, which `tests/loom` replaces by loom's.

pub(crate) mod spin_lock;

pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
    thread::yield_now,
};

pub(crate) use parking_lot::Mutex;
use parking_lot::MutexGuard;

/// Spins on a taken lock before the thread yields.
pub(crate) const MAX_SPINS: u32 = 64;

/// parking_lot's `Condvar` with the interface of std's.
#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(&mut guard);
        guard
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// std's `UnsafeCell` with the interface of loom's.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
        look(self.0.get())
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}
