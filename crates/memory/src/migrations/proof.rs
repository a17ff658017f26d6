//! Whether the counters count: one page is made to migrate, and its record must come.
//!
//! CUPTI takes every call and delivers nothing where it was loaded after the device's context was made, for example.

use std::{os::raw::c_int, ptr};

use transload_core::{Result, host_access};
use transload_cuda_sys::{
    AsStream, Context, DriverError, RelaxedCapture, Stream, StreamOptions, check, ffi, record_drop_error,
};

use super::{
    cupti::unavailable,
    session::{self, Heard},
};
use crate::{CudaDevice, CudaFeature, lift};

/// Enough for every size of pages.
const BYTES: usize = 64 << 10;

/// # Errors
/// `Unsupported` where no record comes; the driver's.
pub(super) fn prove(device: &CudaDevice, heard: &Heard) -> Result<()> {
    if !device.supports_feature(CudaFeature::ConcurrentManagedAccess)? {
        let text =
            format!("on {} the driver moves unified memory as a whole, and nothing faults", device.id());
        return Err(unavailable(text));
    }
    let context = device.context()?;
    let memory = Managed::new(context).map_err(lift)?;
    memory.touch();
    memory.send(context.device().as_raw()).map_err(lift)?;
    session::flush()?;
    let counted = heard.lock().within(&(memory.address..memory.address + BYTES as u64));
    if counted.bytes_to_device > 0 {
        return Ok(());
    }
    Err(unavailable(format!(
        "CUPTI is loaded, but a migration on {} did not come to be known; it has to be loaded before the process's first CUDA \
         context, so start a tracker before anything else uses the device",
        device.id()
    )))
}

struct Managed<'a> {
    context: &'a Context,
    address: u64,
}

impl<'a> Managed<'a> {
    fn new(context: &'a Context) -> Result<Self, DriverError> {
        /// `CU_MEM_ATTACH_GLOBAL`.
        const GLOBAL: u32 = 1;
        let _bound = context.enter()?;
        let _capture = RelaxedCapture::enter()?;
        let mut address = 0;
        // SAFETY: the out pointer is valid and a context is current.
        check("cuMemAllocManaged", unsafe { ffi::cuMemAllocManaged(&mut address, BYTES, GLOBAL) })?;
        Ok(Self { context, address })
    }

    /// Puts its first page into the host's memory.
    fn touch(&self) {
        let Ok(address) = usize::try_from(self.address) else { return };
        host_access::note(address, BYTES, host_access::HostAccess::Write);
        let start: *mut u8 = ptr::with_exposed_provenance_mut(address);
        // SAFETY: the memory is owned, and with concurrent access the host may use it at any time.
        unsafe { start.write_volatile(1) };
    }

    fn send(&self, to: c_int) -> Result<(), DriverError> {
        let stream = Stream::new(self.context, StreamOptions::default())?;
        let _bound = self.context.enter()?;
        // SAFETY: the range is managed memory that lives until the stream is waited for below.
        check("cuMemPrefetchAsync", unsafe {
            ffi::cuMemPrefetchAsync(self.address, BYTES, to, stream.as_raw())
        })?;
        stream.synchronize()
    }
}

impl Drop for Managed<'_> {
    fn drop(&mut self) {
        record_drop_error(self.context.enter().and_then(|_bound| {
            let _capture = RelaxedCapture::enter()?;
            // SAFETY: it is owned, and what used it is over or never began.
            check("cuMemFree_v2", unsafe { ffi::cuMemFree_v2(self.address) })
        }));
    }
}
