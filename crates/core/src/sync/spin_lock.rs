//! A lock for a few dozen instructions: taking it is one locked instruction, opening it none.
//!
//! Opening by a plain store leaves no room for a list of sleepers: who finds it taken looks again, and lets others run
//! between. So nothing is done under it that could block, but for a page that a short copy brings in, and it is not for threads of
//! real-time priorities of which one may starve another.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use crate::sync::{AtomicBool, Condvar, MAX_SPINS, Mutex, Ordering, UnsafeCell, spin_loop, yield_now};

/// A value that one thread at a time uses, briefly. In this order, so that taking it brings the value's beginning along.
#[derive(Debug)]
#[repr(C)]
pub struct SpinLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached by the guard, of which there is one at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// The right to use the value; the lock is open again when it is dropped.
pub struct SpinLockGuard<'a, T> {
    lock: &'a SpinLock<T>,
    /// It may be shared or sent where the value may.
    value: PhantomData<&'a mut T>,
}

impl<T> SpinLock<T> {
    /// Returns an open lock.
    pub fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the lock; spins, and lets others run, until it is open.
    #[inline]
    pub fn lock(&self) -> SpinLockGuard<'_, T> {
        if !self.try_acquire() {
            self.lock_slow();
        }
        SpinLockGuard { lock: self, value: PhantomData }
    }

    /// Takes the lock if it is open.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinLockGuard<'_, T>> {
        // Made only where it is taken: the drop of a guard opens the lock.
        self.try_acquire().then(|| SpinLockGuard { lock: self, value: PhantomData })
    }

    /// The value, of which this is the only reference.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        // SAFETY: borrowed mutably, so there is no guard and no other reference.
        self.value.with_mut(|value| unsafe { &mut *value })
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn lock_slow(&self) {
        let mut spins = 0;
        // Looking does not take the line from who is about to open it.
        while self.locked.load(Ordering::Relaxed) || !self.try_acquire() {
            spins += 1;
            if spins < MAX_SPINS {
                spin_loop();
            } else {
                spins = 0;
                yield_now();
            }
        }
    }
}

impl<T: Default> Default for SpinLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for SpinLockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the one guard, which borrows the lock; no reference outlives a borrow of it.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for SpinLockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; borrowed mutably, so there is no other reference.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for SpinLockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // What was done with the value comes before, for whoever takes it next.
        self.lock.locked.store(false, Ordering::Release);
    }
}

/// Where threads sleep until a value under a brief lock has changed.
#[derive(Debug, Default)]
pub(crate) struct Notify {
    /// Held from before the look at the value until asleep: a ring falls before the look or upon a sleeper.
    mutex: Mutex<()>,
    condvar: Condvar,
}

impl Notify {
    /// Blocks while `must_wait`, which looks at the value under its lock, and notes there that somebody waits.
    pub(crate) fn wait_while(&self, mut must_wait: impl FnMut() -> bool) {
        let mut mutex = self.mutex.lock();
        while must_wait() {
            mutex = self.condvar.wait(mutex);
        }
    }

    /// Wakes everyone; called behind the change, without its lock, where somebody waits.
    pub(crate) fn notify_all(&self) {
        drop(self.mutex.lock());
        self.condvar.notify_all();
    }
}
