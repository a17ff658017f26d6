//! A slot for one shared value, filled and emptied without a lock.

use std::ptr;

use crate::sync::{Arc, AtomicPtr, Ordering};

/// Holds one `Arc` of the value, or null.
pub(crate) struct Slot<T>(AtomicPtr<T>);

// SAFETY: it holds an `Arc`, which it gives and takes by value.
unsafe impl<T: Send + Sync> Send for Slot<T> {}
// SAFETY: as above; each handle is had by one thread, by an atomic exchange.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<T> Slot<T> {
    #[inline]
    pub(crate) fn take(&self) -> Option<Arc<T>> {
        let value = self.0.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: a pointer in the slot came from `Arc::into_raw` in `put`, and the exchange gave its handle to this call alone.
        (!value.is_null()).then(|| unsafe { Arc::from_raw(value) })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    /// Stores the value, or returns it if the slot is full.
    pub(crate) fn put(&self, value: Arc<T>) -> Option<Arc<T>> {
        let new = Arc::into_raw(value).cast_mut();
        match self.0.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => None,
            // SAFETY: it came from `Arc::into_raw` above and is in no slot.
            Err(_) => Some(unsafe { Arc::from_raw(new) }),
        }
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
