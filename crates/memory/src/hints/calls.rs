//! The driver's calls about managed ranges, the newer form where the driver has it, and what its refusals mean.

use std::sync::OnceLock;

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, RawBuffer, Result};
use transload_cuda_sys::{Context, Device, Driver, DriverError, RelaxedCapture, attribute, check, ffi};

use super::MemoryLocation;
use crate::{lift, unified_memory};

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

/// A range of managed memory, and a context in which to speak of it.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) context: Context,
}

impl Range {
    /// A raw range.
    pub(super) fn at(context: &Context, address: u64, bytes: usize) -> Result<Self> {
        check_range(address, bytes)?;
        Ok(Self { address, bytes, context: context.clone() })
    }

    /// The whole of a buffer, which must be unified memory of at least 1 byte.
    pub(super) fn of(buffer: &RawBuffer) -> Result<Self> {
        let place = buffer.place();
        let (DeviceId::Cuda(ordinal), MemoryKind::Unified, Some(address)) =
            (place.device, place.kind, buffer.device_address())
        else {
            let text = format!(
                "hints are for CUDA's unified memory only, not {place}; allocate MemoryKind::Unified"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        check_range(address, buffer.len())?;
        let context = match unified_memory::context_of(buffer) {
            Some(context) => context.clone(),
            // Someone else's managed memory: any context can speak of it, its device's is at hand.
            None => Device::new(ordinal).and_then(Context::primary).map_err(lift)?,
        };
        Ok(Self { address, bytes: buffer.len(), context })
    }

    /// Gives advice; `location` is looked at only by advice that is about a place.
    pub(super) fn advise(&self, advice: Advice, location: MemoryLocation) -> Result<()> {
        give(&self.context, (self.address, self.bytes), advice, location)
    }
}

/// Gives advice on all of a buffer, as [`Range::of`] and [`Range::advise`] do, without a handle of the context of its own: that
/// would take as long as a tenth of the driver's call.
pub(super) fn advise_buffer(buffer: &RawBuffer, advice: Advice, location: MemoryLocation) -> Result<()> {
    match unified_memory::context_of(buffer).zip(buffer.device_address()) {
        Some((context, address)) if !buffer.is_empty() => {
            give(context, (address, buffer.len()), advice, location)
        }
        _ => Range::of(buffer)?.advise(advice, location),
    }
}

fn give(
    context: &Context,
    (address, bytes): (u64, usize),
    advice: Advice,
    location: MemoryLocation,
) -> Result<()> {
    let newer = has_locations()?;
    let raw = location.to_raw()?;
    let older = if newer { 0 } else { location.to_older()? };
    let _bound = context.enter().map_err(lift)?;
    let _capture = RelaxedCapture::enter().map_err(lift)?;
    let made = if newer {
        // SAFETY: advice moves pages at most; the driver refuses a range that is not managed memory.
        let code = unsafe { ffi::cuMemAdvise_v2(address, bytes, advice as u32, raw) };
        check("cuMemAdvise_v2", code)
    } else {
        // SAFETY: as above.
        let code = unsafe { ffi::cuMemAdvise(address, bytes, advice as u32, older) };
        check("cuMemAdvise", code)
    };
    made.map_err(|error| explain_hint(error, address, bytes, location))
}

/// Refuses ranges that no memory can have.
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

/// Whether the driver names places by type and number: CUDA 12.2 and newer.
pub(super) fn has_locations() -> Result<bool> {
    static HAS: OnceLock<bool> = OnceLock::new();
    if let Some(has) = HAS.get() {
        return Ok(*has);
    }
    let driver = Driver::get().map_err(lift)?;
    Ok(*HAS.get_or_init(|| driver.has(c"cuMemAdvise_v2") && driver.has(c"cuMemPrefetchAsync_v2")))
}

/// Why the driver refused a prefetch of, or advice on, a range, in core's terms: the device is unknown, it cannot share
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
