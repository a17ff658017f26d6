//! Small mapped host memory of the library itself, which streams and kernels read.

use std::{ptr::NonNull, sync::Arc};

use transload_core::Result;
use transload_cuda_sys::{Context, DriverError, ffi};

use super::free_thread::{Address, FreeThread};
use crate::{
    PinnedLimit,
    allocation_counts::{AllocationCounts, CountGuard},
    lift,
    pinned_limit::Pinned,
};

/// Mapped host memory, zero at first. May be dropped on any thread, also while a stream uses it: it is freed on another thread
/// when the device no longer does.
#[derive(Debug)]
pub(crate) struct MappedPage {
    host: NonNull<u8>,
    device: u64,
    /// That of all pages of the device, so that no drop has to start one.
    thread: Arc<FreeThread>,
    /// Taken at the drop.
    owned: Option<(Context, CountGuard)>,
}

// SAFETY: the memory is owned and not tied to a thread.
unsafe impl Send for MappedPage {}
// SAFETY: by reference only its addresses can be read.
unsafe impl Sync for MappedPage {}

impl MappedPage {
    /// Allocates `bytes` bytes in a context. They count against `limit` until they are freed.
    ///
    /// # Errors
    /// `OutOfMemory` if the limit would be exceeded; `Io` if no thread can be started that will free it; the driver's.
    pub(crate) fn new(context: &Context, bytes: usize, limit: &Arc<PinnedLimit>) -> Result<Self> {
        /// `CU_MEMHOSTALLOC_DEVICEMAP`.
        const DEVICE_MAP: u32 = 2;
        let thread = FreeThread::of_pages(context.device().ordinal())?;
        let counts = AllocationCounts::new(context.device().ordinal(), limit);
        let counted = counts.add_pinned(bytes, Pinned::Allocated)?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the out pointer is valid and a context is current.
        let allocate = || unsafe { ffi::cuMemHostAlloc(&mut pointer, bytes, DEVICE_MAP) };
        context.call("cuMemHostAlloc", allocate).map_err(lift)?;
        let no_address = || DriverError::Call {
            call: "cuMemHostAlloc",
            code: 0,
            name: "success without an address".to_owned(),
        };
        let host = NonNull::new(pointer.cast::<u8>()).ok_or_else(no_address).map_err(lift)?;
        let mut page = Self { host, device: 0, thread, owned: Some((context.clone(), counted)) };
        // SAFETY: the allocation has so many bytes, and nothing else uses them yet.
        unsafe { host.write_bytes(0, bytes) };
        // SAFETY: the pointer is the beginning of a live allocation, and a context is current.
        let find = || unsafe { ffi::cuMemHostGetDevicePointer_v2(&mut page.device, pointer, 0) };
        context.call("cuMemHostGetDevicePointer_v2", find).map_err(lift)?;
        Ok(page)
    }

    /// Returns the address for the host, aligned to a page, valid while `self` lives.
    pub(crate) fn host_address(&self) -> NonNull<u8> {
        self.host
    }

    /// Returns the address for the device.
    pub(crate) fn device_address(&self) -> u64 {
        self.device
    }
}

impl MappedPage {
    /// Has the memory freed on `thread`.
    pub(crate) fn free_on(mut self, thread: &FreeThread) {
        self.queue_free(thread);
    }

    fn queue_free(&mut self, thread: &FreeThread) {
        if let Some((context, counted)) = self.owned.take() {
            thread.free(context, Address::Host(self.host.as_ptr().expose_provenance()), counted);
        }
    }
}

impl Drop for MappedPage {
    /// Has the memory freed on another thread, since freeing waits for the device.
    fn drop(&mut self) {
        let thread = Arc::clone(&self.thread);
        self.queue_free(&thread);
    }
}
