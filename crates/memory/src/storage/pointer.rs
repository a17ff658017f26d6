//! What the driver knows of an address.

use transload_core::Result;
use transload_cuda_sys::{Context, RelaxedCapture, check, ffi};

use crate::{CudaDevice, lift};

/// The driver's attributes of memory; see [`pointer_attributes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerAttributes {
    /// Whether it is host memory that the driver allocated or registered.
    pub is_host: bool,
    /// Whether it is managed memory, wherever its pages are.
    pub is_managed: bool,
    /// The ordinal of the device that it was allocated on, or registered through.
    pub ordinal: u32,
}

/// Returns the attributes of `bytes` bytes (at least 1), which may span several allocations. `None` if the first and the last byte
/// differ, or if the driver does not know them, such as ordinary host memory. Creates the device's context.
///
/// # Errors
/// [`ErrorKind::DeviceLost`](transload_core::ErrorKind::DeviceLost), and other errors of the driver.
pub fn pointer_attributes(
    device: &CudaDevice,
    address: u64,
    bytes: usize,
) -> Result<Option<PointerAttributes>> {
    let context = device.context()?;
    let first = query(context, address)?;
    let Some(last_address) = address.checked_add(bytes.saturating_sub(1) as u64) else { return Ok(None) };
    let last = query(context, last_address)?;
    Ok(first.filter(|first| Some(*first) == last))
}

/// Returns how many bytes from an address on belong to the allocation there, if the driver knows it.
///
/// # Errors
/// As for [`pointer_attributes`].
pub(super) fn allocated_from(device: &CudaDevice, address: u64) -> Result<Option<u64>> {
    /// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`.
    const RANGE_START: u32 = 11;
    /// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`.
    const RANGE_SIZE: u32 = 12;

    let context = device.context()?;
    let Some(start) = attribute(context, RANGE_START, address)? else { return Ok(None) };
    let Some(size) = attribute(context, RANGE_SIZE, address)? else { return Ok(None) };
    Ok(start.saturating_add(size).checked_sub(address))
}

fn query(context: &Context, address: u64) -> Result<Option<PointerAttributes>> {
    /// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`; 1 is host memory.
    const MEMORY_TYPE: u32 = 2;
    /// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
    const IS_MANAGED: u32 = 8;
    /// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
    const DEVICE_ORDINAL: u32 = 9;

    let Some(kind) = attribute(context, MEMORY_TYPE, address)? else { return Ok(None) };
    let Some(managed) = attribute(context, IS_MANAGED, address)? else { return Ok(None) };
    let Some(ordinal) = attribute(context, DEVICE_ORDINAL, address)? else { return Ok(None) };
    // Managed memory counts as device memory, wherever it is resident.
    let is_managed = managed & 1 == 1;
    Ok(Some(PointerAttributes { is_host: kind == 1 && !is_managed, is_managed, ordinal: ordinal as u32 }))
}

/// Returns `None` for an address that the driver does not know.
fn attribute(context: &Context, which: u32, address: u64) -> Result<Option<u64>> {
    const INVALID_VALUE: u32 = 1;
    let _bound = context.enter().map_err(lift)?;
    let _capture = RelaxedCapture::enter().map_err(lift)?;
    // The driver sets the first 1, 4 or 8 bytes, and is for little-endian machines only.
    let mut value = 0_u64;
    // SAFETY: the attributes are numbers of at most 8 bytes; any address may be queried.
    match unsafe { ffi::cuPointerGetAttribute((&raw mut value).cast(), which, address) } {
        INVALID_VALUE => Ok(None),
        code => check("cuPointerGetAttribute", code).map(|()| Some(value)).map_err(lift),
    }
}
