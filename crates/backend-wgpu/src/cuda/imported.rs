//! Memory and semaphores of Vulkan in CUDA.

use std::{mem, sync::Arc};

use transload_core::{Error, ErrorKind, Result, mutant};
use transload_cuda_sys::{
    DriverError, RawStream, check,
    cust::sys::{
        self, CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
        CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC, CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
        CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, CUexternalMemory, CUexternalSemaphore,
    },
    ffi, record_drop_error,
};
use transload_memory::{CudaDevice, lift};
use transload_streams::SemaphoreCalls;

use super::{Kept, Shared};
use crate::vulkan::{Descriptor, Semaphore};

/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: Option<u32> = Some(801);
/// `CUDA_EXTERNAL_MEMORY_DEDICATED`: the memory is one buffer's.
const DEDICATED: u32 = 1;

const KIND: sys::CUexternalSemaphoreHandleType_enum =
    sys::CUexternalSemaphoreHandleType_enum::CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;

/// Closes a descriptor that no import took.
fn close(descriptor: Descriptor) {
    #[cfg(unix)]
    // SAFETY: the descriptor is open and nobody else's.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(descriptor.0) });
    #[cfg(not(unix))]
    let Descriptor(_) = descriptor;
}

/// Memory of Vulkan at an address of CUDA's. Freed on drop, with a context current; no work uses it then.
pub(super) struct ImportedMemory {
    device: CudaDevice,
    memory: CUexternalMemory,
    address: u64,
    /// Freed after the import has ended.
    _vulkan: Arc<Shared>,
}

// SAFETY: the driver's handle may be used by any thread.
unsafe impl Send for ImportedMemory {}

impl ImportedMemory {
    pub(super) fn new(device: &CudaDevice, vulkan: &Arc<Shared>) -> Result<Self> {
        let context = device.context()?;
        let (descriptor, bytes) = vulkan.memory.memory().export()?;
        let description = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
            type_: sys::CUexternalMemoryHandleType_enum::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
            handle: sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st__bindgen_ty_1 { fd: descriptor.0 },
            size: bytes,
            flags: DEDICATED,
            reserved: [0; 16],
        };
        let mut memory: CUexternalMemory = std::ptr::null_mut();
        // SAFETY: the context is current; the descriptor names memory of so many bytes, which is dedicated.
        let import = || unsafe { ffi::cuImportExternalMemory(&mut memory, &description) };
        if let Err(error) = context.call("cuImportExternalMemory", import) {
            close(descriptor);
            let text = "the CUDA driver imports no memory of Vulkan";
            return Err(match error.code() {
                NOT_SUPPORTED => Error::caused_by(ErrorKind::Unsupported, text, lift(error)),
                _ => lift(error),
            });
        }
        let mut made = Self { device: device.clone(), memory, address: 0, _vulkan: Arc::clone(vulkan) };
        let range = CUDA_EXTERNAL_MEMORY_BUFFER_DESC { offset: 0, size: bytes, flags: 0, reserved: [0; 16] };
        let mut address = 0;
        // SAFETY: the memory was imported, and is mapped once.
        let map = || unsafe { ffi::cuExternalMemoryGetMappedBuffer(&mut address, memory, &range) };
        context.call("cuExternalMemoryGetMappedBuffer", map).map_err(lift)?;
        made.address = address;
        Ok(made)
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        let Ok(context) = self.device.context() else { return };
        if self.address != 0 {
            // SAFETY: the buffer was mapped, and no work uses it, by the owner's promise.
            let free = || unsafe { ffi::cuMemFree_v2(self.address) };
            record_drop_error(context.call("cuMemFree_v2", free));
        }
        // SAFETY: the memory was imported, and its buffer is freed.
        let destroy = || unsafe { ffi::cuDestroyExternalMemory(self.memory) };
        record_drop_error(context.call("cuDestroyExternalMemory", destroy));
    }
}

/// A timeline semaphore of Vulkan. No stream waits for it or signals it when it is dropped.
pub(super) struct ImportedSemaphore {
    device: CudaDevice,
    raw: CUexternalSemaphore,
    /// What the semaphore belongs to.
    _vulkan: Kept,
}

// SAFETY: the driver's handle may be used by any thread.
unsafe impl Send for ImportedSemaphore {}
// SAFETY: as above.
unsafe impl Sync for ImportedSemaphore {}

impl ImportedSemaphore {
    pub(super) fn new(device: &CudaDevice, semaphore: &Semaphore, vulkan: Kept) -> Result<Self> {
        let context = device.context()?;
        let descriptor = semaphore.export()?;
        let description = CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
            type_: KIND,
            handle: sys::CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st__bindgen_ty_1 { fd: descriptor.0 },
            flags: 0,
            reserved: [0; 16],
        };
        let mut raw: CUexternalSemaphore = std::ptr::null_mut();
        // SAFETY: the context is current; the descriptor names a timeline semaphore.
        let import = || unsafe { ffi::cuImportExternalSemaphore(&mut raw, &description) };
        if let Err(error) = context.call("cuImportExternalSemaphore", import) {
            close(descriptor);
            return Err(lift(error));
        }
        Ok(Self { device: device.clone(), raw, _vulkan: vulkan })
    }
}

// SAFETY: both APIs count the same semaphore, and the driver documents the order.
unsafe impl SemaphoreCalls for ImportedSemaphore {
    fn wait(&self, stream: RawStream, value: u64) -> Result<(), DriverError> {
        if mutant!("wgpu/cuda-waits") {
            return Ok(());
        }
        // SAFETY: all fields are integers or unions of such.
        let mut parameters: CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS = unsafe { mem::zeroed() };
        parameters.params.fence.value = value;
        // SAFETY: the semaphore and the stream are valid; there is one of each.
        let code = unsafe { ffi::cuWaitExternalSemaphoresAsync(&self.raw, &parameters, 1, stream) };
        check("cuWaitExternalSemaphoresAsync", code)
    }

    fn signal(&self, stream: RawStream, value: u64) -> Result<(), DriverError> {
        // SAFETY: all fields are integers or unions of such.
        let mut parameters: CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS = unsafe { mem::zeroed() };
        parameters.params.fence.value = value;
        // SAFETY: the semaphore and the stream are valid; there is one of each.
        let code = unsafe { ffi::cuSignalExternalSemaphoresAsync(&self.raw, &parameters, 1, stream) };
        check("cuSignalExternalSemaphoresAsync", code)
    }
}

impl Drop for ImportedSemaphore {
    fn drop(&mut self) {
        let Ok(context) = self.device.context() else { return };
        // SAFETY: it was imported, and no stream uses it, by the owner's promise.
        let destroy = || unsafe { ffi::cuDestroyExternalSemaphore(self.raw) };
        record_drop_error(context.call("cuDestroyExternalSemaphore", destroy));
    }
}

#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/unit/captures.rs"]
mod tests;
