//! Verifies that the counters work: migrates one page and checks that a record arrives.
//!
//! CUPTI may accept every call and deliver nothing, for example if it was loaded after the device's context was
//! created.

use transload_core::{MemoryKind, Result};
use transload_cuda_sys::{AsStream, Stream, StreamOptions};

use crate::cupti::{
    library::unavailable,
    session::{self, SharedRegions},
};
use crate::{CudaDevice, CudaFeature, CudaMemoryManager, MemoryLocation, PrefetchTarget, lift};

/// At least one page of any size.
const BYTES: usize = 64 << 10;

/// # Errors
/// `Unsupported` where no record comes; the driver's.
pub(super) fn run(device: &CudaDevice, regions: &SharedRegions) -> Result<()> {
    if !device.supports_feature(CudaFeature::ConcurrentManagedAccess)? {
        let text =
            format!("on {} the driver migrates unified memory as a whole, without page faults", device.id());
        return Err(unavailable(text));
    }
    let memory = CudaMemoryManager::new(device)?;
    let page = memory.allocate(MemoryKind::Unified, BYTES)?;
    // Populate the page on the host.
    page.write()?.fill(1);
    let address = page.device_address().unwrap_or_default();
    let there = PrefetchTarget::new(MemoryLocation::Device(device.ordinal()))?;
    let context = device.context()?;
    let send = || {
        let stream = Stream::new(context, StreamOptions::default())?;
        let _bound = context.enter()?;
        // SAFETY: the stream is alive, and waited for while the memory is.
        unsafe { there.enqueue(address, BYTES, stream.as_raw()) }?;
        stream.synchronize()
    };
    send().map_err(lift)?;
    session::flush(true)?;
    let counted = regions.lock().within(&(address..address + BYTES as u64));
    drop(page);
    memory.drain()?;
    if counted.bytes_to_device > 0 {
        return Ok(());
    }
    Err(unavailable(format!(
        "CUPTI is loaded, but a migration on {} did not come to be known; it has to be loaded before the process's first CUDA \
         context, so start a tracker before anything else uses the device",
        device.id()
    )))
}
