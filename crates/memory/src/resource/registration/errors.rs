//! Errors of registrations, and conversion of buffers to address ranges.

use std::{ops::Range, ptr::NonNull};

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, MemoryShortage, Place, Result};
use transload_cuda_sys::DriverError;

use crate::{error::lift_allocation, manager::AllocContext};

/// Converts to an address range. Two ranges may share a page: the driver registers bytes.
pub(super) fn addresses(address: NonNull<u8>, bytes: usize) -> Result<Range<usize>> {
    let start = address.as_ptr().expose_provenance();
    let overflows = || Error::new(ErrorKind::OutOfRange, format!("{bytes} bytes exceed the address space"));
    Ok(start..start.checked_add(bytes).ok_or_else(overflows)?)
}

pub(super) fn in_use(range: &Range<usize>) -> Error {
    let text = format!(
        "bytes {:#x} to {:#x} are registered and in use; drop the buffers made from them, views and loans, and wait for their work, first",
        range.start, range.end
    );
    Error::new(ErrorKind::Busy, text)
}

pub(super) fn limit_exceeded(range: &Range<usize>, held: u64, limit: u64) -> Error {
    let requested = (range.end - range.start) as u64;
    let shortage = MemoryShortage { requested, free: Some(limit.saturating_sub(held)), total: Some(limit) };
    Error::out_of_memory(Place::new(DeviceId::Cpu, MemoryKind::Pinned), shortage)
}

/// Explains why the driver refused to register a range.
pub(super) fn refused(error: DriverError, alloc: &AllocContext<'_>, bytes: usize) -> Error {
    const INVALID_VALUE: u32 = 1;
    const OPERATING_SYSTEM: u32 = 304;
    const ALREADY_REGISTERED: u32 = 712;
    const NOT_SUPPORTED: u32 = 801;
    match error.code() {
        Some(ALREADY_REGISTERED) => {
            let text = "part of this memory is already registered by another user; unregister it there";
            Error::caused_by(ErrorKind::InvalidArgument, text, error)
        }
        Some(INVALID_VALUE | OPERATING_SYSTEM | NOT_SUPPORTED) => {
            let text = "the driver cannot pin this memory; it may be read-only or device registers";
            Error::caused_by(ErrorKind::Unsupported, text, error)
        }
        _ => lift_allocation(error, alloc.context, Place::new(DeviceId::Cpu, MemoryKind::Pinned), bytes),
    }
}
