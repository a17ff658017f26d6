//! An adaptor that limits the bytes allocated from a resource.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{
    Access, Claims, DeviceId, Error, Fence, MemoryInfo, MemoryShortage, Place, RawBuffer, Reclaimer, Result,
    Storage,
};

use super::MemoryResource;

/// Refuses segments beyond a limit of live bytes. A segment counts until it is released to the wrapped resource, which
/// may keep it while work on it is in flight. Every method may be called from any thread.
pub struct LimitingResource<R> {
    upstream: R,
    limit: u64,
    used: Arc<AtomicU64>,
    /// Holds only segments that could not adopt their fences.
    reclaimer: Arc<Reclaimer>,
}

impl<R: MemoryResource> LimitingResource<R> {
    /// Creates an adaptor that allocates at most `limit` live bytes from `upstream`.
    #[must_use]
    pub fn new(upstream: R, limit: u64) -> Self {
        Self { upstream, limit, used: Arc::default(), reclaimer: Arc::default() }
    }

    /// Returns the number of live bytes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

// SAFETY: a segment of the wrapped resource is owned by the returned buffer only.
unsafe impl<R: MemoryResource> MemoryResource for LimitingResource<R> {
    fn place(&self) -> Place {
        self.upstream.place()
    }

    fn device(&self) -> Option<DeviceId> {
        self.upstream.device()
    }

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        self.reclaimer.sweep();
        let requested = bytes as u64;
        let within = |used: u64| used.checked_add(requested).filter(|sum| *sum <= self.limit);
        if let Err(used) = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within) {
            let free = Some(self.limit.saturating_sub(used));
            let shortage = MemoryShortage { requested, free, total: Some(self.limit) };
            return Err(Error::out_of_memory(self.place(), shortage));
        }
        let reservation = Reservation { used: Arc::clone(&self.used), bytes: requested };
        let segment = self.upstream.allocate_segment(bytes)?;
        Ok(RawBuffer::new(Box::new(LimitedSegment { segment, _reservation: reservation }), &self.reclaimer))
    }

    fn trim(&self) -> Result<()> {
        self.reclaimer.drain_where(crate::manager::is_device_fence).and(self.upstream.trim())
    }

    fn info(&self) -> Result<MemoryInfo> {
        let left = self.limit.saturating_sub(self.used());
        // If the upstream does not know, the limit is used.
        let of_upstream = self.upstream.info().unwrap_or(MemoryInfo { free: u64::MAX, total: u64::MAX });
        let MemoryInfo { free, total } = of_upstream;
        Ok(MemoryInfo { free: free.min(left), total: total.min(self.limit) })
    }
}

impl<R> std::fmt::Debug for LimitingResource<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LimitingResource").field("limit", &self.limit).field("used", &self.used).finish()
    }
}

/// Bytes reserved from the limit until dropped.
struct Reservation {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A segment of the wrapped resource, released before its reservation.
struct LimitedSegment {
    segment: RawBuffer,
    _reservation: Reservation,
}

// SAFETY: every method returns that of a live segment, which is owned until drop.
unsafe impl Storage for LimitedSegment {
    fn place(&self) -> Place {
        self.segment.place()
    }

    fn len(&self) -> usize {
        self.segment.len()
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.segment.host_address()
    }

    fn device_address(&self) -> Option<u64> {
        self.segment.device_address()
    }

    fn is_writable(&self) -> bool {
        self.segment.is_writable()
    }

    /// Passes the fences to the segment, which waits for them even if this resource was dropped.
    fn adopt_fences(&mut self, until: &[Fence]) -> bool {
        until.iter().all(|fence| {
            let claims = Claims::acquire(&mut [(&self.segment, Access::Read)]);
            // SAFETY: the segment's own buffer has no other user, so the claim has no predecessors.
            claims.map(|claims| unsafe { claims.commit(fence) }).is_ok()
        })
    }

    /// Returns the innermost storage.
    fn as_any(&self) -> &dyn Any {
        self.segment.storage().map_or(self, Storage::as_any)
    }
}
