//! Counts of imported tensors.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Counts of imported tensors that are not released.
#[derive(Debug, Default)]
pub(crate) struct ImportCounts {
    pub(crate) tensors: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// Counts a tensor until it is dropped.
pub(crate) struct CountGuard {
    counts: Arc<ImportCounts>,
    bytes: u64,
}

impl ImportCounts {
    pub(crate) fn add(self: &Arc<Self>, bytes: usize) -> CountGuard {
        let guard = CountGuard { counts: Arc::clone(self), bytes: bytes as u64 };
        self.tensors.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(guard.bytes, Ordering::Relaxed);
        guard
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.counts.tensors.fetch_sub(1, Ordering::Release);
        self.counts.bytes.fetch_sub(self.bytes, Ordering::Release);
    }
}
