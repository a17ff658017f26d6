//! One kind of a device's memory as a resource: device memory (of a pool where the driver has them), pinned, mapped, unified.

use std::sync::Arc;

use transload_core::{DeviceId, Error, ErrorKind, MemoryInfo, MemoryKind, Place, RawBuffer, Result};

use super::MemoryResource;
use crate::CudaMemoryManager;

/// Segments of one kind from a [`CudaMemoryManager`].
#[derive(Clone, Debug)]
pub struct CudaResource {
    manager: Arc<CudaMemoryManager>,
    kind: MemoryKind,
}

impl CudaResource {
    /// A resource over one of the manager's kinds.
    ///
    /// # Errors
    /// `Unsupported` for a kind that the manager does not give.
    pub fn new(manager: &Arc<CudaMemoryManager>, kind: MemoryKind) -> Result<Self> {
        let kinds = manager.kinds();
        if kinds.contains(&kind) {
            return Ok(Self { manager: Arc::clone(manager), kind });
        }
        let valid: Vec<String> = kinds.iter().map(ToString::to_string).collect();
        let text =
            format!("{} gives no {kind} memory; valid are {}", manager.device().id(), valid.join(", "));
        Err(Error::new(ErrorKind::Unsupported, text))
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
        self.manager.allocate(self.kind, bytes)
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
