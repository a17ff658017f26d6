//! One kind of a device's memory as a resource: device memory (of a pool where the driver has them), pinned, mapped, unified.

use std::sync::Arc;

use transload_core::{DeviceId, MemoryInfo, MemoryKind, Place, RawBuffer, Result};

use super::MemoryResource;
use crate::{CudaMemoryManager, manager::Terms};

/// Segments of one kind from a [`CudaMemoryManager`].
#[derive(Clone, Debug)]
pub struct CudaResource {
    manager: Arc<CudaMemoryManager>,
    kind: MemoryKind,
    pub(super) terms: Terms,
}

impl CudaResource {
    /// A resource over one of the manager's kinds.
    ///
    /// # Errors
    /// `Unsupported` for a kind that the manager does not give.
    pub fn new(manager: &Arc<CudaMemoryManager>, kind: MemoryKind) -> Result<Self> {
        if !manager.kinds().contains(&kind) {
            return Err(manager.no_such_kind(kind));
        }
        Ok(Self::with_terms(manager, kind, Terms::Usual))
    }

    pub(super) fn with_terms(manager: &Arc<CudaMemoryManager>, kind: MemoryKind, terms: Terms) -> Self {
        Self { manager: Arc::clone(manager), kind, terms }
    }

    fn is_hosts(&self) -> bool {
        matches!(self.kind, MemoryKind::Pinned | MemoryKind::Mapped)
    }
}

// SAFETY: the manager gives every allocation once, as a buffer that nobody else has, and takes memory back only when nothing in
// flight uses it.
unsafe impl MemoryResource for CudaResource {
    fn place(&self) -> Place {
        let owner = if self.is_hosts() { DeviceId::Cpu } else { self.manager.device().id() };
        Place::new(owner, self.kind)
    }

    fn device(&self) -> Option<DeviceId> {
        (!self.is_hosts()).then(|| self.manager.device().id())
    }

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        self.manager.allocate_as(self.kind, bytes, self.terms)
    }

    fn trim(&self) -> Result<()> {
        self.manager.drain_of_devices()
    }

    fn info(&self) -> Result<MemoryInfo> {
        if self.is_hosts() {
            return transload_core::host_memory();
        }
        self.manager.info()
    }
}
