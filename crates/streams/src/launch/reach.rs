//! Which memory a kernel can use in place, and at which address.

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, RawBuffer, Result};
use transload_cuda_sys::{Context, RelaxedCapture, attribute, check, ffi};
use transload_memory::{lift, lift_in};

/// Returns the address at which kernels of a context use a buffer.
///
/// # Errors
/// `Unsupported` for memory that the device cannot access: pageable host memory, pinned but unmapped host memory, and
/// memory of a device without peer access.
pub(crate) fn address(buffer: &RawBuffer, context: &Context) -> Result<u64> {
    let place = buffer.place();
    let device = DeviceId::Cuda(context.device().ordinal());
    let visible = match place.kind {
        MemoryKind::Device | MemoryKind::Unified if place.device == device => true,
        MemoryKind::Mapped => place.device.is_cpu(),
        MemoryKind::Device => is_granted(buffer, context)?,
        // Unified memory of another device migrates.
        MemoryKind::Unified => migrates(buffer, context)?,
        MemoryKind::Pageable | MemoryKind::Pinned => false,
    };
    buffer.device_address().filter(|_| visible).ok_or_else(|| {
        let text = format!(
            "kernels of {device} cannot use {place} memory; valid are mapped host memory, its own device and unified memory, \
             and memory of peers with access enabled"
        );
        Error::new(ErrorKind::Unsupported, text)
    })
}

/// Returns whether access to a peer's memory is enabled, for the context or for the memory's pool.
pub(crate) fn is_granted(buffer: &RawBuffer, context: &Context) -> Result<bool> {
    /// `CU_POINTER_ATTRIBUTE_ACCESS_FLAGS`: access by the current context's device.
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
    // SAFETY: the out pointer is valid for 8 bytes, the largest result; any address may be queried.
    let code = unsafe { ffi::cuPointerGetAttribute((&raw mut flags).cast(), ACCESS_FLAGS, address) };
    match check("cuPointerGetAttribute", code) {
        Ok(()) => Ok(flags & READ_WRITE == READ_WRITE),
        Err(error) if error.is_sticky() => Err(lift_in(context, error)),
        // An older driver: memory not known to be accessible is not used.
        Err(_) => Ok(false),
    }
}

fn migrates(buffer: &RawBuffer, context: &Context) -> Result<bool> {
    let concurrent = context.device().attribute(attribute::CONCURRENT_MANAGED_ACCESS).map_err(lift)?;
    Ok(concurrent != 0 && matches!(buffer.place().device, DeviceId::Cuda(_)))
}
