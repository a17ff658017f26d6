//! Which memory a kernel can use in place, and at which address.

use std::ptr;

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, RawBuffer, Result};
use transload_cuda_sys::{Context, RelaxedCapture, attribute, check, cust::sys::CUmemoryPool, ffi};
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

/// Returns whether kernels of a context may access a peer's memory. Memory of a pool: if the pool grants the device access. Other memory: if the
/// context [has access](Context::has_peer), and a mapping of the caller's, if it is one, grants it too. `CU_POINTER_ATTRIBUTE_ACCESS_FLAGS` does not
/// tell: driver 580 returns read and write for memory without access, too (docs/benchmarks/2026-11-29-2xH200-peer-access.txt).
pub(crate) fn is_granted(buffer: &RawBuffer, context: &Context) -> Result<bool> {
    /// `CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`.
    const POOL: u32 = 17;
    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    const DEVICE: u32 = 1;
    /// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
    const READ_WRITE: u64 = 3;
    let (DeviceId::Cuda(peer), Some(address)) = (buffer.place().device, buffer.device_address()) else {
        return Ok(false);
    };
    if transload_core::mutant!("streams/peer-access-is-asked-for") {
        return Ok(true);
    }
    let asked = |name, code| match check(name, code) {
        Ok(()) => Ok(true),
        Err(error) if error.is_sticky() => Err(lift_in(context, error)),
        // Memory of another kind, or an older driver.
        Err(_) => Ok(false),
    };
    let _bound = context.enter().map_err(lift)?;
    let _capture = RelaxedCapture::enter().map_err(lift)?;
    // `CUmemLocation`: two 4-byte words.
    let mut location = [DEVICE, context.device().as_raw().cast_unsigned()];
    let location = (&raw mut location).cast();
    let mut pool: CUmemoryPool = ptr::null_mut();
    // SAFETY: the out pointer is valid for a handle; any address may be queried.
    let code = unsafe { ffi::cuPointerGetAttribute((&raw mut pool).cast(), POOL, address) };
    if asked("cuPointerGetAttribute", code)? && !pool.is_null() {
        let mut flags = 0_u32;
        // SAFETY: the pool is that of live memory; the location has the size and layout of the structure.
        let code = unsafe { ffi::cuMemPoolGetAccess(&mut flags, pool, location) };
        return Ok(asked("cuMemPoolGetAccess", code)? && u64::from(flags) & READ_WRITE == READ_WRITE);
    }
    let mut mapped = 0;
    // SAFETY: the out pointer is valid; any address may be passed, and what is no mapping of `cuMemMap` is refused.
    let code = unsafe {
        ffi::cuMemRetainAllocationHandle(&mut mapped, ptr::with_exposed_provenance_mut(address as usize))
    };
    if asked("cuMemRetainAllocationHandle", code)? {
        // SAFETY: the handle was just retained.
        check("cuMemRelease", unsafe { ffi::cuMemRelease(mapped) })
            .map_err(|error| lift_in(context, error))?;
        let mut flags = 0_u64;
        // SAFETY: the out pointer is valid, and the location as above; the address is that of a mapping. Of other memory the call says that
        // nobody has access.
        let code = unsafe { ffi::cuMemGetAccess(&mut flags, location, address) };
        if !asked("cuMemGetAccess", code)? || flags & READ_WRITE != READ_WRITE {
            return Ok(false);
        }
    }
    Ok(context.has_peer(peer))
}

fn migrates(buffer: &RawBuffer, context: &Context) -> Result<bool> {
    let concurrent = context.device().attribute(attribute::CONCURRENT_MANAGED_ACCESS).map_err(lift)?;
    Ok(concurrent != 0 && matches!(buffer.place().device, DeviceId::Cuda(_)))
}
