//! A lock for critical sections of a few dozen instructions: locking takes one atomic instruction, unlocking
//! none.
//!
//! Unlocking is a plain store, so there is no wait queue: a contended `lock` spins, then yields. Critical
//! sections must not block, except for a page fault of a short copy. Not for real-time threads that can
//! starve each other.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use crate::sync::{AtomicBool, Condvar, MAX_SPINS, Mutex, Ordering, UnsafeCell, spin_loop, yield_now};

/// A mutual exclusion lock. Field order matters: locking fetches the beginning of the value into the cache.
#[derive(Debug)]
#[repr(C)]
pub struct SpinLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only the guard accesses the value, and there is at most one guard.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Access to the value; unlocks on drop.
pub struct SpinLockGuard<'a, T> {
    lock: &'a SpinLock<T>,
    /// Makes the guard `Send` and `Sync` only if `&mut T` is.
    value: PhantomData<&'a mut T>,
}

impl<T> SpinLock<T> {
    /// Creates an unlocked lock.
    pub fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Locks. Spins, then yields, until the lock is free.
    #[inline]
    pub fn lock(&self) -> SpinLockGuard<'_, T> {
        if !self.try_acquire() {
            self.lock_slow();
        }
        SpinLockGuard { lock: self, value: PhantomData }
    }

    /// Locks if the lock is free.
    #[inline]
    pub fn try_lock(&self) -> Option<SpinLockGuard<'_, T>> {
        // Created only after locking, since dropping a guard unlocks.
        self.try_acquire().then(|| SpinLockGuard { lock: self, value: PhantomData })
    }

    /// Returns the value, which needs no lock here.
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
        // Spin on a load: it does not take exclusive ownership of the cache line.
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
        // SAFETY: this is the only guard, and it borrows the lock; the reference does not outlive the borrow
        // of the guard.
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
        // Publishes the changes of the value to the next holder.
        self.lock.locked.store(false, Ordering::Release);
    }
}

/// Lets threads wait for a change of a value under a spin lock.
#[derive(Debug, Default)]
pub(crate) struct Notify {
    /// Held from the check of the condition until the thread sleeps, so that no wakeup is lost.
    mutex: Mutex<()>,
    condvar: Condvar,
}

impl Notify {
    /// Blocks while `must_wait` returns `true`. It checks the value under its lock, and records there that a
    /// thread waits.
    pub(crate) fn wait_while(&self, mut must_wait: impl FnMut() -> bool) {
        let mut mutex = self.mutex.lock();
        while must_wait() {
            mutex = self.condvar.wait(mutex);
        }
    }

    /// Wakes all waiting threads. Call after the change, without the lock, if a thread waits.
    pub(crate) fn notify_all(&self) {
        drop(self.mutex.lock());
        self.condvar.notify_all();
    }
}
