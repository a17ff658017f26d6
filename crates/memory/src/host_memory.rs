//! Host memory that the driver pins, and maps into the device's address space where asked to.

use std::{any::Any, ptr, ptr::NonNull, sync::Arc};

use transload_core::{DeviceId, MemoryKind, Place, Storage};
use transload_cuda_sys::{Context, DriverError, RelaxedCapture, check, ffi};

use crate::{
    janitor::{Address, Janitor},
    tally::Counted,
};

/// Pinned or mapped host memory.
pub(crate) struct HostMemory {
    address: NonNull<u8>,
    device_address: Option<u64>,
    bytes: usize,
    kind: MemoryKind,
    write_combined: bool,
    context: Context,
    janitor: Arc<Janitor>,
    /// Taken when the memory goes back.
    counted: Option<Counted>,
}

// SAFETY: the memory is owned and not tied to a thread.
unsafe impl Send for HostMemory {}
// SAFETY: as above; access to the bytes is ordered by the buffer over it.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    pub(crate) fn allocate(
        context: &Context,
        kind: MemoryKind,
        write_combined: bool,
        bytes: usize,
        janitor: &Arc<Janitor>,
        count: impl FnOnce() -> Counted,
    ) -> Result<Self, DriverError> {
        /// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context, so that any device's copy engine takes it.
        const PORTABLE: u32 = 1;
        /// `CU_MEMHOSTALLOC_DEVICEMAP`.
        const DEVICE_MAP: u32 = 2;
        /// `CU_MEMHOSTALLOC_WRITECOMBINED`.
        const WRITE_COMBINED: u32 = 4;
        let mut flags = if kind == MemoryKind::Mapped { PORTABLE | DEVICE_MAP } else { PORTABLE };
        if write_combined {
            flags |= WRITE_COMBINED;
        }
        let _bound = context.enter()?;
        let _capture = RelaxedCapture::enter()?;
        let mut pointer = ptr::null_mut();
        // SAFETY: the out pointer is valid and a context is current.
        check("cuMemHostAlloc", unsafe { ffi::cuMemHostAlloc(&mut pointer, bytes, flags) })?;
        let Some(address) = NonNull::new(pointer.cast::<u8>()) else {
            return Err(DriverError::Call {
                call: "cuMemHostAlloc",
                code: 0,
                name: "success without an address".to_owned(),
            });
        };
        let mut memory = Self {
            address,
            device_address: None,
            bytes,
            kind,
            write_combined,
            context: context.clone(),
            janitor: Arc::clone(janitor),
            counted: Some(count()),
        };
        let mut device_address = 0;
        // SAFETY: the pointer is the beginning of a live allocation, and a context is current.
        let found = check("cuMemHostGetDevicePointer_v2", unsafe {
            ffi::cuMemHostGetDevicePointer_v2(&mut device_address, pointer, 0)
        });
        match found {
            Ok(()) => memory.device_address = Some(device_address),
            Err(error) if kind == MemoryKind::Mapped || error.is_sticky() => return Err(error),
            // Without unified addressing pinned memory is for copy engines only.
            Err(_) => {}
        }
        Ok(memory)
    }

    pub(crate) fn is_write_combined(&self) -> bool {
        self.write_combined
    }
}

// SAFETY: the driver allocated `bytes` bytes at page granularity, filled by the system, owned until drop; the device
// address is the driver's name for the same bytes.
unsafe impl Storage for HostMemory {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, self.kind)
    }

    fn len(&self) -> usize {
        self.bytes
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        Some(self.address)
    }

    fn device_address(&self) -> Option<u64> {
        self.device_address
    }

    /// Write-combined memory is no destination: what a device wrote there the host could read only a word at a time.
    fn is_writable(&self) -> bool {
        !self.write_combined
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Some(counted) = self.counted.take() {
            let address = Address::Host(self.address.as_ptr().expose_provenance());
            self.janitor.free(self.context.clone(), address, counted);
        }
    }
}
