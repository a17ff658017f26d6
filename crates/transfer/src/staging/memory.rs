//! Staging buffers for callers of the manager.

use std::{fmt, ops::Deref};

use transload_core::{DeviceId, MemoryKind, RawBuffer, Result};

use super::ring::{Reservation, STAGING_BUFFER};
use crate::CrossBackendTransferManager;

/// Host memory that a caller's bytes pass through on their way to or from a device. Made by
/// [`CrossBackendTransferManager::allocate_staging`].
///
/// Counts as a staging buffer until dropped. The memory itself may stay pinned for longer: until the copies in flight are
/// complete, and while a clone or a slice of the buffer is alive. To keep to the limit exactly, wait for the copies first.
pub struct StagingMemory {
    buffer: RawBuffer,
    _reservation: Option<Reservation>,
}

impl CrossBackendTransferManager {
    /// Allocates host memory for bytes on their way to or from `device`. Pinned and mapped memory is that of the device, and counts as
    /// [staging buffers](Self::staging_bytes) until the value is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](transload_core::ErrorKind::OutOfMemory) beyond the
    /// [staging limit](crate::ManagerBuilder::staging_limit); those of [`allocate`](Self::allocate).
    pub fn allocate_staging(
        &self,
        device: DeviceId,
        kind: MemoryKind,
        bytes: usize,
    ) -> Result<StagingMemory> {
        if !matches!(kind, MemoryKind::Pinned | MemoryKind::Mapped) {
            let buffer = self.allocate(DeviceId::Cpu, kind, bytes)?;
            return Ok(StagingMemory { buffer, _reservation: None });
        }
        let ring = self.registry.rings.get_or_create(&self.backend(device)?, device);
        let reservation = Some(ring.reserve(bytes as u64)?);
        let buffer = match device {
            DeviceId::Cpu => self.allocate(device, kind, bytes)?,
            _ => self.allocate_for(device, kind, bytes)?,
        };
        Ok(StagingMemory { buffer, _reservation: reservation })
    }

    /// Returns the bytes of staging buffers: those that transfers use, those that are only kept, which [`drain`](Self::drain)
    /// frees, and those of callers.
    #[must_use]
    pub fn staging_bytes(&self) -> u64 {
        self.registry.rings.bytes()
    }

    /// Returns the part of [`staging_bytes`](Self::staging_bytes) that transfers use or keep, without that of callers.
    #[must_use]
    pub fn ring_bytes(&self) -> u64 {
        self.registry.rings.ring_bytes()
    }

    /// Returns the most bytes of staging buffers that transfers use for each device.
    #[must_use]
    pub fn ring_limit(&self) -> u64 {
        STAGING_BUFFER.saturating_mul(self.registry.rings.ring_size() as u64)
    }
}

impl Deref for StagingMemory {
    type Target = RawBuffer;

    fn deref(&self) -> &RawBuffer {
        &self.buffer
    }
}

impl fmt::Debug for StagingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StagingMemory").field(&self.buffer).finish()
    }
}
