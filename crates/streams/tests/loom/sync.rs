//! Loom's version of `src/sync.rs`.

use std::ops::{Deref, DerefMut};

pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence},
};

/// Like parking_lot's: locking returns no error.
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

pub(crate) struct Guard<'a, T>(loom::sync::MutexGuard<'a, T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        Guard(self.0.lock().unwrap())
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
