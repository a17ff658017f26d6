//! Memory of the registered backends.

use transload_core::{DeviceId, MemoryKind, Place, RawBuffer, Result};

use crate::CrossBackendTransferManager;

impl CrossBackendTransferManager {
    /// Allocates `bytes` of a kind of memory. Pinned and mapped host memory is allocated by the first device that
    /// offers it; [`allocate_for`](Self::allocate_for) takes a device instead.
    ///
    /// # Errors
    /// Those of [`Backend::allocate`](transload_core::Backend::allocate).
    pub fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        if !(device.is_cpu() && matches!(kind, MemoryKind::Pinned | MemoryKind::Mapped)) {
            return self.allocate_for(device, kind, bytes);
        }
        let backends = self.registry.backends();
        let maker = backends.iter().find_map(|registered| {
            let device = registered.devices.iter().find(|device| device.kinds.contains(&kind))?;
            Some((&registered.backend, device.id))
        });
        match maker {
            Some((backend, device)) => backend.allocate(device, kind, bytes),
            None => Err(self.registry.not_offered(Place::new(device, kind))),
        }
    }

    /// Allocates `bytes` of a kind of memory by the backend of `device`. Pinned memory for `cuda:1`, for example, is host memory that CUDA's
    /// copy engines can use; other drivers [do not know it](RawBuffer::is_known_to).
    ///
    /// # Errors
    /// Those of [`Backend::allocate`](transload_core::Backend::allocate).
    pub fn allocate_for(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        self.registry.backend(device)?.allocate(device, kind, bytes)
    }
}
