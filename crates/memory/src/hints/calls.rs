//! The driver's calls about managed ranges, the newer form where the driver has it, and what its refusals mean.

use std::{cell::Cell, sync::OnceLock};

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, Place, RawBuffer, Result};
use transload_cuda_sys::{
    Context, Device, Driver, DriverError, attribute, check,
    ffi::{self, MemLocation},
    relaxed, try_in_current,
};

use super::{MemoryLocation, prefetch_target::DriverLocation};
use crate::{lift, storage::context_of_kind};

/// `CUDA_SUCCESS`.
const SUCCESS: u32 = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_INVALID_DEVICE`.
const INVALID_DEVICE: u32 = 101;

/// What is advised, as `CUmem_advise` numbers it.
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

/// First byte's address and length of a range.
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
    let text = format!("hints are for CUDA's unified memory only, not {place}; allocate MemoryKind::Unified");
    Error::new(ErrorKind::Unsupported, text)
}

/// Returns a context in which to speak of a buffer. Of managed memory of another owner any can: that of its device is at hand.
pub(super) fn context_for(buffer: &RawBuffer) -> Result<Context> {
    match context_of_kind(buffer, MemoryKind::Unified) {
        Some(context) => Ok(context.clone()),
        None => Device::new(buffer.place().device.ordinal()).and_then(Context::primary).map_err(lift),
    }
}

thread_local! {
    /// Driver 580 takes no advice on a thread without a context, and finds that out slowly: so the first one enters.
    static CONTEXT_FALLBACK: Cell<bool> = const { Cell::new(true) };
}

/// Gives advice on a range; `location` is looked at only by advice that is about a place, and `context` called only if the driver
/// refuses. Advice is about addresses, which are the same in every context, so that any current one will do: to look for the memory's
/// own and enter it takes as long as a tenth of the driver's call (H200).
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

/// In the memory's own context, unless it was there that the driver refused it.
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

/// Refuses ranges that no memory can have.
#[inline]
pub(super) fn check_range(address: u64, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Err(Error::new(ErrorKind::InvalidArgument, "a hint needs a range of at least 1 byte"));
    }
    if address.checked_add(bytes as u64).is_none() {
        let text = format!("{bytes} bytes at {address:#x} leave the address space");
        return Err(Error::new(ErrorKind::OutOfRange, text));
    }
    Ok(())
}

/// See [`has_v2`]; empty until someone asked.
static HAS_V2: OnceLock<bool> = OnceLock::new();

/// Whether the driver is known to name places by type and number.
#[inline]
fn is_known_v2() -> bool {
    HAS_V2.get().is_some_and(|has| *has)
}

/// Whether the driver names places by type and number: CUDA 12.2 and newer.
pub(super) fn has_v2() -> Result<bool> {
    if let Some(has) = HAS_V2.get() {
        return Ok(*has);
    }
    let driver = Driver::get().map_err(lift)?;
    Ok(*HAS_V2.get_or_init(|| driver.has(c"cuMemAdvise_v2") && driver.has(c"cuMemPrefetchAsync_v2")))
}

/// Why the driver refused a prefetch of, or advice on, a range, in core's mode: the device is unknown, it cannot share
/// unified memory with the host, or the range is not managed memory. The driver is asked only after a refusal, so that hints
/// that are right cost no questions.
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
