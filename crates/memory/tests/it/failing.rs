//! An adaptor that fails on request, for tests of error paths.

use std::sync::atomic::{AtomicU64, Ordering};

use transload_core::{DeviceId, Error, MemoryInfo, MemoryShortage, Place, RawBuffer, Result};
use transload_memory::MemoryResource;

/// Fails chosen segments with `OutOfMemory`, and forwards everything else.
pub(crate) struct FailingResource<R> {
    upstream: R,
    refusals: AtomicU64,
    /// The request to fail, counted as `asked` is; 0 for none.
    refused_call: AtomicU64,
    asked: AtomicU64,
    trimmed: AtomicU64,
}

impl<R: MemoryResource> FailingResource<R> {
    /// Fails nothing until told to.
    pub(crate) fn new(upstream: R) -> Self {
        let zero = || AtomicU64::new(0);
        Self { upstream, refusals: zero(), refused_call: zero(), asked: zero(), trimmed: zero() }
    }

    /// Fails the next `count` segments; `u64::MAX` means all.
    pub(crate) fn refuse(&self, count: u64) {
        self.refusals.store(count, Ordering::Relaxed);
    }

    /// Fails only the `nth` segment from now on, 1 being the next.
    pub(crate) fn refuse_call(&self, nth: u64) {
        self.refused_call.store(self.asked().saturating_add(nth), Ordering::Relaxed);
    }

    /// Number of segments requested.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Number of trims.
    pub(crate) fn trimmed(&self) -> u64 {
        self.trimmed.load(Ordering::Relaxed)
    }
}

// SAFETY: segments are passed on unchanged.
unsafe impl<R: MemoryResource> MemoryResource for FailingResource<R> {
    fn place(&self) -> Place {
        self.upstream.place()
    }

    fn device(&self) -> Option<DeviceId> {
        self.upstream.device()
    }

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        let call = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let one_less = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        let is_told = call == self.refused_call.load(Ordering::Relaxed)
            || self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
        if is_told {
            let shortage = MemoryShortage { requested: bytes as u64, free: None, total: None };
            return Err(Error::out_of_memory(self.place(), shortage));
        }
        self.upstream.allocate_segment(bytes)
    }

    fn trim(&self) -> Result<()> {
        self.trimmed.fetch_add(1, Ordering::Relaxed);
        self.upstream.trim()
    }

    fn info(&self) -> Result<MemoryInfo> {
        self.upstream.info()
    }
}
