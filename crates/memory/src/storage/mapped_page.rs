//! Small mapped host memory of the library itself, which streams and kernels read.

use std::{ptr::NonNull, sync::Arc, time::Duration};

use transload_core::{DeviceId, Result, events::report};
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
pub struct MappedPage {
    host: NonNull<u8>,
    device: u64,
    bytes: usize,
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
    /// [`OutOfMemory`](transload_core::ErrorKind::OutOfMemory) if the limit would be exceeded; the driver's.
    pub fn new(context: &Context, bytes: usize, limit: &Arc<PinnedLimit>) -> Result<Self> {
        /// `CU_MEMHOSTALLOC_DEVICEMAP`.
        const DEVICE_MAP: u32 = 2;
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
        let mut page = Self { host, device: 0, bytes, owned: Some((context.clone(), counted)) };
        // SAFETY: the allocation has so many bytes, and nothing else uses them yet.
        unsafe { host.write_bytes(0, bytes) };
        // SAFETY: the pointer is the beginning of a live allocation, and a context is current.
        let find = || unsafe { ffi::cuMemHostGetDevicePointer_v2(&mut page.device, pointer, 0) };
        context.call("cuMemHostGetDevicePointer_v2", find).map_err(lift)?;
        Ok(page)
    }

    /// Returns the address for the host, aligned to a page, valid while `self` lives.
    #[must_use]
    pub fn host_address(&self) -> NonNull<u8> {
        self.host
    }

    /// Returns the address for the device.
    #[must_use]
    pub fn device_address(&self) -> u64 {
        self.device
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl MappedPage {
    /// Frees the memory, and waits for that, but not longer than `limit`: other work of the device may take long. For a page that the
    /// device does not use any more.
    pub fn free_within(mut self, limit: Duration) {
        if let Some(thread) = self.free() {
            thread.drain(Some(limit));
        }
    }

    /// Has the memory freed on another thread, since freeing waits for the device. Without a thread it stays until the context ends.
    fn free(&mut self) -> Option<Arc<FreeThread>> {
        let owned = self.owned.take()?;
        match FreeThread::start() {
            Ok(thread) => {
                let (context, counted) = owned;
                thread.free(context, Address::Host(self.host.as_ptr().expose_provenance()), counted);
                Some(thread)
            }
            Err(error) => {
                let device = DeviceId::Cuda(owned.0.device().ordinal());
                report::call_failed("a page of pinned memory stays allocated", device, &error);
                std::mem::forget(owned);
                None
            }
        }
    }
}

impl Drop for MappedPage {
    fn drop(&mut self) {
        let _thread = self.free();
    }
}
