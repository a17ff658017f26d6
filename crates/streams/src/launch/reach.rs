//! Which memory a kernel can use in place, and under which address.

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, RawBuffer, Result};
use transload_cuda_sys::{Context, RelaxedCapture, attribute, check, ffi};
use transload_memory::lift;

/// The address under which a context's kernels use a buffer.
///
/// # Errors
/// `Unsupported` for memory that the device does not reach: pageable and merely pinned host memory, and the memory of a
/// device that it has no peer access to.
pub(crate) fn address(buffer: &RawBuffer, context: &Context) -> Result<u64> {
    let place = buffer.place();
    let device = DeviceId::Cuda(context.device().ordinal());
    let visible = match place.kind {
        MemoryKind::Device | MemoryKind::Unified if place.device == device => true,
        MemoryKind::Mapped => place.device.is_cpu(),
        MemoryKind::Device => granted(buffer, context)?,
        // Unified memory of another device is reached by migration.
        MemoryKind::Unified => migrates(buffer, context)?,
        MemoryKind::Pageable | MemoryKind::Pinned => false,
    };
    buffer.device_address().filter(|_| visible).ok_or_else(|| {
        let text = format!(
            "kernels of {device} cannot use {place} memory; valid are mapped host memory, its own device and unified memory, \
             and memory of peers that access is enabled to"
        );
        Error::new(ErrorKind::Unsupported, text)
    })
}

/// Whether access to a peer's memory is enabled, for the context or for the memory's pool.
fn granted(buffer: &RawBuffer, context: &Context) -> Result<bool> {
    /// `CU_POINTER_ATTRIBUTE_ACCESS_FLAGS`: what the current context's device may do.
    const ACCESS_FLAGS: u32 = 16;
    /// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
    const READ_WRITE: u64 = 3;
    let (true, Some(address)) = (matches!(buffer.place().device, DeviceId::Cuda(_)), buffer.device_address())
    else {
        return Ok(false);
    };
    let _bound = context.enter().map_err(lift)?;
    let _capture = RelaxedCapture::enter().map_err(lift)?;
    let mut flags = 0_u64;
    // SAFETY: the out pointer is valid for the answer, which has no more than 8 bytes; any address may be asked about.
    let code = unsafe { ffi::cuPointerGetAttribute((&raw mut flags).cast(), ACCESS_FLAGS, address) };
    match check("cuPointerGetAttribute", code) {
        Ok(()) => Ok(flags & READ_WRITE == READ_WRITE),
        Err(error) if error.is_sticky() => Err(lift(error)),
        // A driver that cannot tell: what is not known to be reachable is not used.
        Err(_) => Ok(false),
    }
}

fn migrates(buffer: &RawBuffer, context: &Context) -> Result<bool> {
    let concurrent = context.device().attribute(attribute::CONCURRENT_MANAGED_ACCESS).map_err(lift)?;
    Ok(concurrent != 0 && matches!(buffer.place().device, DeviceId::Cuda(_)))
}
