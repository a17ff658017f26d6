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
    /// Managed memory among them.
    managed: AtomicU64,
}

/// One live allocation in a tally; leaves it when dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    tally: Arc<Tally>,
    bytes: u64,
    is_managed: bool,
}

impl Tally {
    pub(crate) fn enter(self: &Arc<Self>, bytes: usize) -> Counted {
        self.add(bytes as u64, false)
    }

    /// As [`enter`](Self::enter), for managed memory of at most `most` bytes at a time. Where that is too much, answers how
    /// many bytes there are already.
    pub(crate) fn enter_managed(self: &Arc<Self>, bytes: usize, most: u64) -> Result<Counted, u64> {
        let bytes = bytes as u64;
        let within = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= most);
        self.managed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)?;
        Ok(self.add(bytes, true))
    }

    fn add(self: &Arc<Self>, bytes: u64, is_managed: bool) -> Counted {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Counted { tally: Arc::clone(self), bytes, is_managed }
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
        if self.is_managed {
            self.tally.managed.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}
