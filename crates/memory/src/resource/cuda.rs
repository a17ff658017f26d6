//! One kind of memory of a manager as a resource: device, pinned, mapped or unified.
//!
//! Every method may be called from any thread.

use std::sync::Arc;

use transload_core::{DeviceId, Error, ErrorKind, MemoryInfo, MemoryKind, Place, RawBuffer, Result};

use super::MemoryResource;
use crate::{CudaMemoryManager, manager::AllocMode};

/// Segments of one kind of memory from a [`CudaMemoryManager`].
#[derive(Clone, Debug)]
pub struct CudaResource {
    manager: Arc<CudaMemoryManager>,
    kind: MemoryKind,
    mode: AllocMode,
}

impl CudaResource {
    /// Creates a resource of one kind of memory.
    ///
    /// # Errors
    /// `Unsupported` for a kind that the manager does not support.
    pub fn new(manager: &Arc<CudaMemoryManager>, kind: MemoryKind) -> Result<Self> {
        Self::with_mode(manager, kind, AllocMode::Default)
    }

    /// Creates a resource of managed memory that may exceed the device's free memory, which is refused otherwise: the
    /// driver then evicts pages, which can be many times slower than a copy. [`info`](MemoryResource::info) is
    /// `Unsupported`.
    ///
    /// # Errors
    /// `Unsupported` where the device has no managed memory.
    pub fn oversubscribed(manager: &Arc<CudaMemoryManager>) -> Result<Self> {
        Self::with_mode(manager, MemoryKind::Unified, AllocMode::Oversubscribed)
    }

    /// Creates a resource of write-combined pinned memory, for uploads only. Nothing can be transferred into it and no
    /// writable view opens ([`RawBuffer::is_writable`] is false), since the host would read it some hundred times
    /// slower than other memory. Fill it through an [`UploadBuffer`](crate::UploadBuffer). Read views open, for tests.
    #[must_use]
    pub fn write_combined(manager: &Arc<CudaMemoryManager>) -> Self {
        Self { manager: Arc::clone(manager), kind: MemoryKind::Pinned, mode: AllocMode::WriteCombined }
    }

    fn with_mode(manager: &Arc<CudaMemoryManager>, kind: MemoryKind, mode: AllocMode) -> Result<Self> {
        if !manager.kinds().contains(&kind) {
            return Err(manager.unsupported_kind(kind));
        }
        Ok(Self { manager: Arc::clone(manager), kind, mode })
    }

    fn is_hosts(&self) -> bool {
        matches!(self.kind, MemoryKind::Pinned | MemoryKind::Mapped)
    }
}

// SAFETY: the manager returns every allocation once, as an exclusive buffer, and frees it only when nothing in flight
// uses it.
unsafe impl MemoryResource for CudaResource {
    fn place(&self) -> Place {
        let owner = if self.is_hosts() { DeviceId::Cpu } else { self.manager.device().id() };
        Place::new(owner, self.kind)
    }

    fn device(&self) -> Option<DeviceId> {
        (!self.is_hosts()).then(|| self.manager.device().id())
    }

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        self.manager.allocate_as(self.kind, bytes, self.mode)
    }

    fn trim(&self) -> Result<()> {
        self.manager.drain_device_work()
    }

    fn info(&self) -> Result<MemoryInfo> {
        if self.is_hosts() {
            return Ok(self.manager.pinned_limit().cap(transload_core::host_memory()?));
        }
        if self.mode == AllocMode::Oversubscribed {
            let text =
                "the limit of oversubscribed memory is unknown: it depends on free host and device memory";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        self.manager.info()
    }
}
