//! An adaptor that gives no more than so many bytes at a time.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use transload_core::{Error, MemoryInfo, MemoryShortage, RawBuffer, Result};

use super::{MemoryResource, wrapped::Wrapper};

/// Refuses segments beyond a limit of bytes alive; a segment counts until it is given back to the wrapped resource, which may
/// keep it for as long as work is in flight on it.
pub struct LimitedResource<R> {
    upstream: R,
    limit: u64,
    used: Arc<AtomicU64>,
    wrapper: Wrapper,
}

impl<R: MemoryResource> LimitedResource<R> {
    /// At most `limit` bytes of `upstream`.
    #[must_use]
    pub fn new(upstream: R, limit: u64) -> Self {
        Self { upstream, limit, used: Arc::default(), wrapper: Wrapper::default() }
    }

    /// Bytes alive.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

// SAFETY: a segment of the wrapped resource is kept by the buffer that is given out, and used by nothing else.
unsafe impl<R: MemoryResource> MemoryResource for LimitedResource<R> {
    as_upstream!(upstream: place device);

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        self.wrapper.sweep();
        let requested = bytes as u64;
        let within = |used: u64| used.checked_add(requested).filter(|sum| *sum <= self.limit);
        if let Err(used) = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within) {
            let free = Some(self.limit.saturating_sub(used));
            let shortage = MemoryShortage { requested, free, total: Some(self.limit) };
            return Err(Error::out_of_memory(self.place(), shortage));
        }
        let share = Share { used: Arc::clone(&self.used), bytes: requested };
        let segment = self.upstream.allocate_segment(bytes)?;
        Ok(self.wrapper.wrap(segment, (), share))
    }

    fn trim(&self) -> Result<()> {
        self.wrapper.drain().and(self.upstream.trim())
    }

    fn info(&self) -> Result<MemoryInfo> {
        let left = self.limit.saturating_sub(self.used());
        // What the wrapped resource cannot tell, the limit does.
        let of_upstream = self.upstream.info().unwrap_or(MemoryInfo { free: u64::MAX, total: u64::MAX });
        let MemoryInfo { free, total } = of_upstream;
        Ok(MemoryInfo { free: free.min(left), total: total.min(self.limit) })
    }
}

impl<R> std::fmt::Debug for LimitedResource<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LimitedResource").field("limit", &self.limit).field("used", &self.used).finish()
    }
}

/// A share of the limit; given back when dropped.
struct Share {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
