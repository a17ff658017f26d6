//! Managed memory: one address for host and device.

use std::{any::Any, ptr::NonNull, sync::Arc};

use transload_core::{DeviceId, MemoryKind, Place, RawBuffer, Storage};
use transload_cuda_sys::{Context, DriverError, RelaxedCapture, check, ffi};

use crate::{
    janitor::{Address, Janitor},
    tally::Counted,
};

/// A managed allocation.
pub(crate) struct UnifiedMemory {
    address: u64,
    bytes: usize,
    device: DeviceId,
    /// Whether the host may look while the device works; without it the host must not be given the address.
    host_address: Option<NonNull<u8>>,
    context: Context,
    janitor: Arc<Janitor>,
    /// Taken when the memory goes back.
    counted: Option<Counted>,
}

/// The context in which a managed buffer of this crate was allocated; `None` for memory of another kind or owner.
pub(crate) fn context_of(buffer: &RawBuffer) -> Option<&Context> {
    buffer.storage()?.as_any().downcast_ref::<UnifiedMemory>().map(|memory| &memory.context)
}

// SAFETY: the memory is owned and not tied to a thread.
unsafe impl Send for UnifiedMemory {}
// SAFETY: as above; access to the bytes is ordered by the buffer over it.
unsafe impl Sync for UnifiedMemory {}

impl UnifiedMemory {
    pub(crate) fn allocate(
        context: &Context,
        bytes: usize,
        concurrent: bool,
        janitor: &Arc<Janitor>,
        count: impl FnOnce() -> Counted,
    ) -> Result<Self, DriverError> {
        /// `CU_MEM_ATTACH_GLOBAL`: any stream of any device may use it.
        const GLOBAL: u32 = 1;
        let _bound = context.enter()?;
        let _capture = RelaxedCapture::enter()?;
        let mut address = 0;
        // SAFETY: the out pointer is valid and a context is current.
        check("cuMemAllocManaged", unsafe { ffi::cuMemAllocManaged(&mut address, bytes, GLOBAL) })?;
        let host_address = usize::try_from(address)
            .ok()
            .filter(|_| concurrent)
            .and_then(|address| NonNull::new(std::ptr::with_exposed_provenance_mut(address)));
        Ok(Self {
            address,
            bytes,
            device: DeviceId::Cuda(context.device().ordinal()),
            host_address,
            context: context.clone(),
            janitor: Arc::clone(janitor),
            counted: Some(count()),
        })
    }
}

// SAFETY: the driver allocated `bytes` bytes at page granularity, filled by the system, owned until drop; with concurrent
// access the host may use the address at any time.
unsafe impl Storage for UnifiedMemory {
    fn place(&self) -> Place {
        Place::new(self.device, MemoryKind::Unified)
    }

    fn len(&self) -> usize {
        self.bytes
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.host_address
    }

    fn device_address(&self) -> Option<u64> {
        Some(self.address)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for UnifiedMemory {
    fn drop(&mut self) {
        if let Some(counted) = self.counted.take() {
            self.janitor.free(self.context.clone(), Address::Device(self.address), counted);
        }
    }
}
