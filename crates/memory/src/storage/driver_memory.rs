//! Memory of any kind that the driver allocated or registered.

use std::{any::Any, ptr, ptr::NonNull, sync::Arc};

use transload_core::{DeviceId, MemoryKind, Place, RawBuffer, Storage, mutant};
use transload_cuda_sys::{Context, DriverError, ffi, record_drop_error};

use super::{
    device_memory::{DeviceSource, Pool},
    free_thread::{Address, FreeThread},
};
use crate::{allocation_counts::CountGuard, error::record_loss, lift, manager::AllocContext};

/// One allocation, or pages that this crate registered.
pub(crate) struct DriverMemory {
    place: Place,
    bytes: usize,
    /// `None` if the host must not access the memory, or not while the device works.
    host_address: Option<NonNull<u8>>,
    device_address: Option<u64>,
    write_combined: bool,
    context: Context,
    free_thread: Arc<FreeThread>,
    /// Taken when the memory is freed.
    held: Option<(Origin, CountGuard)>,
}

/// How memory is freed.
pub(crate) enum Origin {
    Pool(Arc<Pool>),
    /// Freed by the driver, which synchronises with the device.
    Freed(Address),
}

// SAFETY: the memory is owned and not tied to a thread.
unsafe impl Send for DriverMemory {}
// SAFETY: as above; access to the bytes is ordered by the buffer over it.
unsafe impl Sync for DriverMemory {}

/// Returns the context of a device buffer allocated by this crate, or whose storage [names](crate::InContext) one;
/// `None` for other memory. A copy between devices names the contexts of both sides.
#[must_use]
pub fn context_of(buffer: &RawBuffer) -> Option<&Context> {
    let other = || buffer.storage()?.as_any().downcast_ref::<crate::InContext>();
    context_of_kind(buffer, MemoryKind::Device).or_else(|| other().map(crate::InContext::context))
}

/// Returns the context in which this crate allocated a buffer; `None` for another kind or owner.
pub(crate) fn context_of_kind(buffer: &RawBuffer, kind: MemoryKind) -> Option<&Context> {
    let memory = buffer.storage()?.as_any().downcast_ref::<DriverMemory>()?;
    (memory.place.kind == kind).then_some(&memory.context)
}

impl DriverMemory {
    pub(crate) fn new(
        alloc: &AllocContext<'_>,
        kind: MemoryKind,
        bytes: usize,
        (host_address, device_address): (Option<NonNull<u8>>, Option<u64>),
        held: (Origin, CountGuard),
    ) -> Self {
        let owner = match kind {
            MemoryKind::Pinned | MemoryKind::Mapped => DeviceId::Cpu,
            _ => DeviceId::Cuda(alloc.context.device().ordinal()),
        };
        Self {
            place: Place::new(owner, kind),
            bytes,
            host_address,
            device_address,
            write_combined: false,
            context: alloc.context.clone(),
            free_thread: Arc::clone(alloc.free_thread),
            held: Some(held),
        }
    }

    /// Allocates device memory.
    pub(crate) fn device(
        alloc: &AllocContext<'_>,
        source: &DeviceSource,
        bytes: usize,
    ) -> Result<Self, DriverError> {
        let (address, origin) = source.allocate(alloc.context, bytes)?;
        let held = (origin, alloc.counts.add_device(bytes));
        Ok(Self::new(alloc, MemoryKind::Device, bytes, (None, Some(address)), held))
    }

    /// Allocates pinned or mapped host memory.
    pub(crate) fn host(
        alloc: &AllocContext<'_>,
        kind: MemoryKind,
        write_combined: bool,
        bytes: usize,
        counted: CountGuard,
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
        let mut pointer = ptr::null_mut();
        // SAFETY: the out pointer is valid and a context is current.
        let allocate = || unsafe { ffi::cuMemHostAlloc(&mut pointer, bytes, flags) };
        alloc.context.call("cuMemHostAlloc", allocate)?;
        let Some(address) = NonNull::new(pointer.cast::<u8>()) else {
            return Err(DriverError::Call {
                call: "cuMemHostAlloc",
                code: 0,
                name: "success without an address".to_owned(),
            });
        };
        let held = (Origin::Freed(Address::Host(pointer.expose_provenance())), counted);
        let mut memory = Self::new(alloc, kind, bytes, (Some(address), None), held);
        memory.write_combined = write_combined;
        let mut device_address = 0;
        // SAFETY: the pointer is the beginning of a live allocation, and a context is current.
        let found = alloc.context.call("cuMemHostGetDevicePointer_v2", || unsafe {
            ffi::cuMemHostGetDevicePointer_v2(&mut device_address, pointer, 0)
        });
        match found {
            Ok(()) => memory.device_address = Some(device_address),
            Err(error) if kind == MemoryKind::Mapped || error.is_sticky() => return Err(error),
            // Without unified addressing only copy engines use pinned memory.
            Err(_) => {}
        }
        Ok(memory)
    }

    /// Allocates managed memory. It has a host address if the host may access it concurrently with the device.
    pub(crate) fn managed(
        alloc: &AllocContext<'_>,
        concurrent: bool,
        bytes: usize,
        counted: CountGuard,
    ) -> Result<Self, DriverError> {
        /// `CU_MEM_ATTACH_GLOBAL`: any stream of any device may use it.
        const GLOBAL: u32 = 1;
        let mut address = 0;
        // SAFETY: the out pointer is valid and a context is current.
        let allocate = || unsafe { ffi::cuMemAllocManaged(&mut address, bytes, GLOBAL) };
        alloc.context.call("cuMemAllocManaged", allocate)?;
        let host_address = usize::try_from(address)
            .ok()
            .filter(|_| concurrent)
            .and_then(|address| NonNull::new(ptr::with_exposed_provenance_mut(address)));
        let held = (Origin::Freed(Address::Device(address)), counted);
        Ok(Self::new(alloc, MemoryKind::Unified, bytes, (host_address, Some(address)), held))
    }

    pub(crate) fn is_write_combined(&self) -> bool {
        self.write_combined
    }
}

// SAFETY: the addresses denote `bytes` bytes owned until drop. With a host address the host may access them: whole,
// initialised pages of host memory or of managed memory with concurrent access.
unsafe impl Storage for DriverMemory {
    fn place(&self) -> Place {
        self.place
    }

    fn len(&self) -> usize {
        self.bytes
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.host_address
    }

    fn device_address(&self) -> Option<u64> {
        self.device_address
    }

    /// Write-combined memory is never a destination: the host reads it very slowly.
    fn is_writable(&self) -> bool {
        !self.write_combined
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for DriverMemory {
    fn drop(&mut self) {
        match (self.held.take(), self.device_address) {
            (Some((Origin::Pool(pool), counted)), Some(address)) => {
                finish_free(pool.free(address), &self.context, counted);
            }
            (Some((Origin::Freed(address), counted)), _) => {
                self.free_thread.free(self.context.clone(), address, counted);
            }
            _ => {}
        }
    }
}

/// Updates the counts after a free. Memory that could not be freed still counts as live; memory of a lost context does
/// not.
pub(crate) fn finish_free(freed: Result<(), DriverError>, context: &Context, counted: impl Sized) {
    let freed = freed.map_err(|error| context.judge(error));
    let is_gone = match &freed {
        Ok(()) => true,
        Err(error) if error.is_sticky() && !mutant!("memory/lost-memory-is-gone") => {
            record_loss(context, &lift(error.clone()));
            true
        }
        Err(_) => mutant!("memory/failed-free-stays"),
    };
    if is_gone {
        drop(counted);
    } else {
        std::mem::forget(counted);
    }
    record_drop_error(freed);
}
