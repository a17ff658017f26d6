//! Counts what is alive.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Live allocations of one manager.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    allocations: AtomicU64,
    bytes: AtomicU64,
}

/// One live allocation in a tally; leaves it when dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    tally: Arc<Tally>,
    bytes: u64,
}

impl Tally {
    pub(crate) fn enter(self: &Arc<Self>, bytes: usize) -> Counted {
        let bytes = bytes as u64;
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Counted { tally: Arc::clone(self), bytes }
    }

    pub(crate) fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.tally.allocations.fetch_sub(1, Ordering::Relaxed);
        self.tally.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
