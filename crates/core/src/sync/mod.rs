//! What the crate's shared state is made of: std's and parking_lot's primitives, for which `tests/loom` puts loom's.

pub(crate) mod spin_lock;

pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, Ordering},
    thread::yield_now,
};

pub(crate) use parking_lot::Mutex;
use parking_lot::MutexGuard;

/// How often a thread looks for an open lock before it lets others run.
pub(crate) const MAX_SPINS: u32 = 64;

/// As parking_lot's, with std's way of waiting.
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

/// As std's, with loom's way of access.
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
