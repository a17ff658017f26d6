//! Counts staging buffers outside the ring against the device's limit.

use std::sync::Arc;

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, MemoryShortage, Place, Result};

use super::{STAGING_BUFFER, StagingRing};

/// Bytes that count as staging buffers until dropped.
pub(crate) struct Reservation {
    ring: Arc<StagingRing>,
    bytes: u64,
}

impl StagingRing {
    /// Counts `bytes` as staging buffers. Free buffers of the ring give way, except one.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] beyond the limit, of which one buffer is left to the ring.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation> {
        let mut state = self.state.lock();
        let most = self.limit.filter(|_| !transload_core::mutant!("transfer/reserve-within-staging-limit"));
        let room = most.unwrap_or(u64::MAX).saturating_sub(state.reserved.saturating_add(bytes));
        let excess = (state.allocated.max(1) as u64 * STAGING_BUFFER).saturating_sub(room);
        let buffers = usize::try_from(excess.div_ceil(STAGING_BUFFER)).unwrap_or(usize::MAX);
        let is_within = room >= STAGING_BUFFER && state.removable() >= buffers;
        let freed = if is_within { state.take_free(1, buffers) } else { Vec::new() };
        if is_within {
            state.reserved += bytes;
        }
        let (ring, others) = (state.allocated as u64 * STAGING_BUFFER, state.reserved);
        drop(state);
        drop(freed);
        if is_within {
            return Ok(Reservation { ring: Arc::clone(self), bytes });
        }
        let limit = self.limit.unwrap_or(u64::MAX);
        let free = limit.saturating_sub(ring.max(STAGING_BUFFER) + others);
        let shortage = MemoryShortage { requested: bytes, free: Some(free), total: Some(limit) };
        let cause = Error::out_of_memory(Place::new(DeviceId::Cpu, MemoryKind::Pinned), shortage);
        let text = format!(
            "the limit of {limit} bytes of staging buffers is reached: {ring} in the ring, {others} elsewhere"
        );
        Err(Error::caused_by(ErrorKind::OutOfMemory, text, cause))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ring.state.lock().reserved -= self.bytes;
    }
}
