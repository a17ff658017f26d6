//! An adaptor that refuses when told to: for tests of what comes after a refusal.

use std::sync::atomic::{AtomicU64, Ordering};

use transload_core::{DeviceId, Error, MemoryInfo, MemoryShortage, Place, RawBuffer, Result};
use transload_memory::MemoryResource;

/// Answers `OutOfMemory` to the segments it was told to refuse, and passes everything else on.
pub(crate) struct FailingResource<R> {
    upstream: R,
    refusals: AtomicU64,
    /// The request to refuse, counted as `asked` is; 0 for none.
    refused_call: AtomicU64,
    asked: AtomicU64,
    trimmed: AtomicU64,
}

impl<R: MemoryResource> FailingResource<R> {
    /// Refuses nothing until it is told to.
    pub(crate) fn new(upstream: R) -> Self {
        let zero = || AtomicU64::new(0);
        Self { upstream, refusals: zero(), refused_call: zero(), asked: zero(), trimmed: zero() }
    }

    /// Refuses the next `count` segments; `u64::MAX` means all from here on.
    pub(crate) fn refuse(&self, count: u64) {
        self.refusals.store(count, Ordering::Relaxed);
    }

    /// Refuses the `nth` segment from now on, 1 being the next, and no other.
    pub(crate) fn refuse_call(&self, nth: u64) {
        self.refused_call.store(self.asked().saturating_add(nth), Ordering::Relaxed);
    }

    /// How many segments were asked for.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// How often it was trimmed.
    pub(crate) fn trimmed(&self) -> u64 {
        self.trimmed.load(Ordering::Relaxed)
    }
}

// SAFETY: a segment is passed on as the wrapped resource gave it.
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
