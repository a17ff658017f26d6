//! Driver calls about managed ranges, the `_v2` forms if the driver has them, and explanations of their errors.

use std::cell::Cell;

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, Place, RawBuffer, Result};
use transload_cuda_sys::{
    Context, Device, DriverError, attribute, check,
    ffi::{self, MemLocation},
    relaxed, try_in_current,
};

use super::{
    MemoryLocation,
    driver_location::{DriverLocation, is_known_v2},
};
use crate::{lift, storage::context_of_kind};

/// `CUDA_SUCCESS`.
const SUCCESS: u32 = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_INVALID_DEVICE`.
const INVALID_DEVICE: u32 = 101;

/// Advice, numbered like `CUmem_advise`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Advice {
    SetReadMostly = 1,
    UnsetReadMostly = 2,
    SetPreferredLocation = 3,
    UnsetPreferredLocation = 4,
    SetAccessedBy = 5,
    UnsetAccessedBy = 6,
}

/// Address and length in bytes.
pub(super) type Range = (u64, usize);

/// Returns the range of a buffer, which must be unified memory of at least 1 byte.
#[inline]
pub(super) fn range_of(buffer: &RawBuffer) -> Result<Range> {
    let place = buffer.place();
    match (place.device, place.kind, buffer.device_address()) {
        (DeviceId::Cuda(_), MemoryKind::Unified, Some(address)) => {
            check_range(address, buffer.len()).map(|()| (address, buffer.len()))
        }
        _ => Err(not_unified(place)),
    }
}

#[cold]
fn not_unified(place: Place) -> Error {
    let text = format!("hints need CUDA unified memory, got {place}; allocate MemoryKind::Unified");
    Error::new(ErrorKind::Unsupported, text)
}

/// Returns a context for calls about a buffer. Any works for managed memory; that of its owner needs no lookup.
pub(super) fn context_for(buffer: &RawBuffer) -> Result<Context> {
    match context_of_kind(buffer, MemoryKind::Unified) {
        Some(context) => Ok(context.clone()),
        None => Device::new(buffer.place().device.ordinal()).and_then(Context::primary).map_err(lift),
    }
}

thread_local! {
    /// Driver 580 refuses advice on a thread without a context, slowly, so the first call binds one.
    static CONTEXT_FALLBACK: Cell<bool> = const { Cell::new(true) };
}

/// Gives advice on a range. `location` is only used by advice that names a location; `context` is only called if the
/// driver refuses. Addresses are the same in every context, so the current one is used if there is one: finding and
/// binding the memory's own takes a tenth of the driver call (H200).
#[inline]
pub(super) fn advise_range(
    range: Range,
    advice: Advice,
    location: MemoryLocation,
    context: impl FnOnce() -> Result<Context>,
) -> Result<()> {
    let at_once = match location {
        MemoryLocation::Device(ordinal) => i32::try_from(ordinal).ok().map(|id| MemLocation { kind: 1, id }),
        MemoryLocation::Host => Some(MemLocation { kind: 2, id: 0 }),
        _ => None,
    };
    let answer = match at_once {
        Some(to) if is_known_v2() => try_in_current(&CONTEXT_FALLBACK, || advise_v2(range, advice, to)),
        _ => None,
    };
    if answer == Some(SUCCESS) {
        Ok(())
    } else {
        advise_in_own_context(range, advice, location, context, answer)
    }
}

/// Repeats the call in the memory's own context, unless the refusing context was that one.
#[cold]
#[inline(never)]
fn advise_in_own_context(
    range: Range,
    advice: Advice,
    location: MemoryLocation,
    context: impl FnOnce() -> Result<Context>,
    refused: Option<u32>,
) -> Result<()> {
    let to = DriverLocation::new(location)?;
    let context = context()?;
    let bound = context.enter_fallback(&CONTEXT_FALLBACK).map_err(lift)?;
    let given = match (refused, to) {
        (Some(answer), _) if bound.was_current() => check("cuMemAdvise_v2", answer),
        (_, DriverLocation::V2(to)) => check("cuMemAdvise_v2", advise_v2(range, advice, to)),
        (_, DriverLocation::V1(to)) => check("cuMemAdvise", advise_v1(range, advice, to)),
    };
    given.map_err(|error| explain_hint(error, range.0, range.1, location))
}

#[inline]
fn advise_v2((address, bytes): Range, advice: Advice, to: MemLocation) -> u32 {
    // SAFETY: advice moves pages at most; the driver refuses a range that is not managed memory.
    relaxed(|| unsafe { ffi::cuMemAdvise_v2(address, bytes, advice as u32, to) })
}

fn advise_v1((address, bytes): Range, advice: Advice, to: i32) -> u32 {
    // SAFETY: as above.
    relaxed(|| unsafe { ffi::cuMemAdvise(address, bytes, advice as u32, to) })
}

/// Refuses empty ranges and ranges that overflow the address space.
#[inline]
pub(super) fn check_range(address: u64, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Err(Error::new(ErrorKind::InvalidArgument, "a hint needs a range of at least 1 byte"));
    }
    if address.checked_add(bytes as u64).is_none() {
        let text = format!("{bytes} bytes at {address:#x} exceed the address space");
        return Err(Error::new(ErrorKind::OutOfRange, text));
    }
    Ok(())
}

/// Explains why the driver refused a prefetch of or advice on a range: unknown device, no concurrent managed access, or
/// not managed memory. Queries the driver only now, so that valid hints cost no queries.
#[cold]
#[must_use]
pub fn explain_hint(error: DriverError, address: u64, bytes: usize, location: MemoryLocation) -> Error {
    let code = error.code();
    if !matches!(code, Some(INVALID_VALUE | INVALID_DEVICE)) {
        return lift(error);
    }
    if let MemoryLocation::Device(ordinal) = location {
        let concurrent =
            Device::new(ordinal).and_then(|device| device.attribute(attribute::CONCURRENT_MANAGED_ACCESS));
        match concurrent {
            Err(unknown) => return lift(unknown),
            Ok(0) => {
                let text = format!(
                    "{location} and the host cannot use unified memory at the same time, so the driver takes no hints \
                     about it; valid are cpu and devices with concurrent managed access"
                );
                return Error::caused_by(ErrorKind::Unsupported, text, error);
            }
            Ok(_) => {}
        }
    }
    let node = matches!(location, MemoryLocation::HostNuma(_));
    if code == Some(INVALID_DEVICE) && !node {
        let text = "the stream's device cannot use unified memory at the same time as the host, so the driver takes no \
                    prefetch on it; valid are streams of devices with concurrent managed access";
        return Error::caused_by(ErrorKind::Unsupported, text, error);
    }
    let or = if node { format!(", or there is no {location}") } else { String::new() };
    let text = format!(
        "{bytes} bytes at {address:#x} are not within one allocation of unified memory{or}; valid is memory of \
         cuMemAllocManaged"
    );
    Error::caused_by(ErrorKind::InvalidArgument, text, error)
}
