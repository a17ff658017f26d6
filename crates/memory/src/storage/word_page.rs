//! A page of mapped host memory, for words that the host writes and streams wait for.

use std::{ptr::NonNull, sync::atomic::AtomicU32};

use transload_core::{DeviceId, Result, events::report};
use transload_cuda_sys::{Context, DriverError, ffi};

use super::free_thread::{Address, FreeThread};
use crate::{PinnedLimit, allocation_counts::AllocationCounts, lift};

/// Bytes of a page: a word in each pair of cache lines, which the processor may fetch together.
const PAGE: usize = 8192;
/// Bytes from one word to the next.
const PITCH: usize = 128;

/// Words in mapped host memory, zero at first, each on cache lines of its own. May be dropped on any thread, also while a stream
/// waits for a word: the page is freed on another thread when the device no longer uses it. No limit or count includes it.
#[derive(Debug)]
pub struct WordPage {
    host: NonNull<u8>,
    device: u64,
    /// Taken at the drop.
    context: Option<Context>,
}

// SAFETY: the page is owned and not tied to a thread.
unsafe impl Send for WordPage {}
// SAFETY: the host accesses it by atomic operations only.
unsafe impl Sync for WordPage {}

impl WordPage {
    /// Number of words in a page.
    pub const WORDS: usize = PAGE / PITCH;

    /// Allocates a page in a context.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context) -> Result<Self> {
        /// `CU_MEMHOSTALLOC_DEVICEMAP`.
        const DEVICE_MAP: u32 = 2;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the out pointer is valid and a context is current.
        let allocate = || unsafe { ffi::cuMemHostAlloc(&mut pointer, PAGE, DEVICE_MAP) };
        context.call("cuMemHostAlloc", allocate).map_err(lift)?;
        let no_address = || DriverError::Call {
            call: "cuMemHostAlloc",
            code: 0,
            name: "success without an address".to_owned(),
        };
        let host = NonNull::new(pointer.cast::<u8>()).ok_or_else(no_address).map_err(lift)?;
        let mut page = Self { host, device: 0, context: Some(context.clone()) };
        // SAFETY: the allocation has so many bytes, and nothing else uses them yet.
        unsafe { host.write_bytes(0, PAGE) };
        // SAFETY: the pointer is the beginning of a live allocation, and a context is current.
        let find = || unsafe { ffi::cuMemHostGetDevicePointer_v2(&mut page.device, pointer, 0) };
        context.call("cuMemHostGetDevicePointer_v2", find).map_err(lift)?;
        Ok(page)
    }

    /// Returns a word and its address for the device. The index counts modulo [`WORDS`](Self::WORDS).
    #[must_use]
    pub fn word(&self, index: usize) -> (&AtomicU32, u64) {
        let offset = index % Self::WORDS * PITCH;
        // SAFETY: the offset is within the page, aligned, and initialised; the page lives as long as `self`, and the host accesses it
        // by atomic operations only.
        let word = unsafe { self.host.add(offset).cast::<AtomicU32>().as_ref() };
        (word, self.device + offset as u64)
    }
}

impl Drop for WordPage {
    fn drop(&mut self) {
        let Some(context) = self.context.take() else { return };
        let counts = AllocationCounts::new(context.device().ordinal(), &PinnedLimit::new(u64::MAX));
        // Freeing would wait for the device. Without a thread the page stays until the context ends.
        match FreeThread::start() {
            Ok(thread) => {
                thread.free(context, Address::Host(self.host.as_ptr().expose_provenance()), counts.add(PAGE));
            }
            Err(error) => {
                let device = DeviceId::Cuda(context.device().ordinal());
                report::call_failed("8 KiB of pinned memory stay allocated", device, &error);
                std::mem::forget(context);
            }
        }
    }
}
