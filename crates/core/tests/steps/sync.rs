//! The crate's synchronization, with locks that note the most steps that a thread takes under one.

use std::{cell::Cell, sync::atomic};

#[path = "../../src/sync/spin_lock.rs"]
pub(crate) mod spin_lock;

use crate::hazard::counted;
pub(crate) use crate::real_sync::{Condvar, MAX_SPINS, Mutex, Ordering, UnsafeCell, spin_loop, yield_now};

thread_local!(static LOCKED: Cell<(u64, u64)> = const { Cell::new((0, 0)) });

/// Returns the most steps that the calling thread took under one lock since it last asked.
pub(crate) fn most_under_one_lock() -> u64 {
    LOCKED.with(|locked| locked.replace((counted(), 0)).1)
}

/// The flag of a lock.
#[derive(Debug)]
pub(crate) struct AtomicBool(atomic::AtomicBool);

impl AtomicBool {
    pub(crate) fn new(value: bool) -> Self {
        Self(atomic::AtomicBool::new(value))
    }

    pub(crate) fn compare_exchange(
        &self,
        current: bool,
        new: bool,
        success: Ordering,
        failure: Ordering,
    ) -> Result<bool, bool> {
        let taken = self.0.compare_exchange(current, new, success, failure)?;
        LOCKED.with(|locked| locked.set((counted(), locked.get().1)));
        Ok(taken)
    }

    pub(crate) fn load(&self, ordering: Ordering) -> bool {
        self.0.load(ordering)
    }

    pub(crate) fn store(&self, value: bool, ordering: Ordering) {
        LOCKED.with(|locked| {
            let (since, most) = locked.get();
            locked.set((since, most.max(counted() - since)));
        });
        self.0.store(value, ordering);
    }
}
