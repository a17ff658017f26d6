//! A staging buffer.

use std::{mem, ptr::NonNull};

use transload_core::{Access, Claims, Fence, RawBuffer, Result};

use super::allocation::unavailable;

/// Pinned memory for one chunk. Unused while it is in the ring.
pub(in crate::staging) struct StagingBuffer {
    /// The memory and its host address; `None` in a ring without memory.
    memory: Option<(RawBuffer, NonNull<u8>)>,
}

// SAFETY: the address is that of the buffer, which is Send; the holder of a staging buffer is its only user.
unsafe impl Send for StagingBuffer {}

impl StagingBuffer {
    pub(super) fn without_memory() -> Self {
        Self { memory: None }
    }

    /// # Errors
    /// [`ErrorKind::Unsupported`](transload_core::ErrorKind::Unsupported) if the host cannot address the memory.
    pub(super) fn new(buffer: RawBuffer) -> Result<Self> {
        match buffer.host_address() {
            Some(address) => Ok(Self { memory: Some((buffer, address)) }),
            None => Err(unavailable("the host cannot address the pinned memory")),
        }
    }

    /// Frees the memory once all copies that use it are complete. They may complete in any order if a device is
    /// lost, so each is recorded as a read, which replaces no other.
    pub(super) fn free_after(self, copies: &[Fence]) {
        let Some((buffer, _)) = &self.memory else { return };
        for copy in copies {
            match Claims::acquire(&mut [(buffer, Access::Read)]) {
                // SAFETY: earlier claims were reads, so there is nothing to wait for and no use is replaced.
                Ok(claims) => unsafe { claims.commit(copy) },
                // Unreachable: there is no other user of the buffer.
                Err(_) => mem::forget(buffer.clone()),
            }
        }
    }

    /// Returns the first `bytes` bytes and their host address.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](transload_core::ErrorKind::OutOfRange) for more than a staging buffer has.
    pub(in crate::staging) fn slice(&self, bytes: usize) -> Result<(RawBuffer, NonNull<u8>)> {
        match &self.memory {
            Some((buffer, address)) => Ok((buffer.slice(..bytes)?, *address)),
            None => Err(unavailable("this ring has none")),
        }
    }
}
