//! Advice on a buffer, in core's terms.

use transload_core::{DeviceId, MemoryAdvice, RawBuffer, Result};

use super::{
    MemoryLocation,
    calls::{Advice, advise_range, context_for, range_of},
};

/// Gives the driver advice on a unified-memory buffer or slice. Moves no data itself, does not wait, and may be called
/// while work is in flight.
///
/// The driver keeps advice per host page, so advice on a slice applies to all of its first and last page. Advice lasts
/// until the allocation is freed: a pool's block keeps the advice of its last user.
///
/// # Errors
/// `Unsupported` for memory that is not unified, for a device of another family, and for a device that cannot share
/// unified memory with the host; `InvalidArgument` for 0 bytes; `UnknownDevice` naming the valid ordinals; the driver's.
///
/// # Example
/// ```
/// # #[cfg(any(target_os = "linux", windows))] {
/// use transload_core::{DeviceId, MemoryAdvice, MemoryKind};
/// use transload_memory::{CudaDevice, CudaMemoryManager, advise};
///
/// fn weights() -> transload_core::Result<()> {
///     let memory = CudaMemoryManager::new(&CudaDevice::new(0)?)?;
///     let weights = memory.allocate(MemoryKind::Unified, 1 << 20)?;
///     advise(&weights, MemoryAdvice::SetReadMostly)?;
///     advise(&weights.slice(..4096)?, MemoryAdvice::SetPreferredLocation(DeviceId::Cpu))
/// }
///
/// if let Err(error) = weights() {
///     println!("no CUDA here: {error}");
/// }
/// # }
/// ```
pub fn advise(buffer: &RawBuffer, advice: MemoryAdvice) -> Result<()> {
    let (advice, location) = split(advice)?;
    advise_range(range_of(buffer)?, advice, location, || context_for(buffer))
}

/// Splits advice into kind and location; the host if the kind has no location.
#[inline]
pub(super) fn split(advice: MemoryAdvice) -> Result<(Advice, MemoryLocation)> {
    Ok(match advice {
        MemoryAdvice::SetReadMostly => (Advice::SetReadMostly, MemoryLocation::Host),
        MemoryAdvice::UnsetReadMostly => (Advice::UnsetReadMostly, MemoryLocation::Host),
        MemoryAdvice::SetPreferredLocation(at) => (Advice::SetPreferredLocation, at.try_into()?),
        MemoryAdvice::UnsetPreferredLocation => (Advice::UnsetPreferredLocation, MemoryLocation::Host),
        MemoryAdvice::SetAccessedBy(by) => (Advice::SetAccessedBy, by.try_into()?),
        MemoryAdvice::UnsetAccessedBy(by) => (Advice::UnsetAccessedBy, by.try_into()?),
    })
}

/// Returns the device that the advice names, if any.
pub(crate) fn place_of(advice: MemoryAdvice) -> Option<DeviceId> {
    match advice {
        MemoryAdvice::SetPreferredLocation(place)
        | MemoryAdvice::SetAccessedBy(place)
        | MemoryAdvice::UnsetAccessedBy(place) => Some(place),
        MemoryAdvice::SetReadMostly
        | MemoryAdvice::UnsetReadMostly
        | MemoryAdvice::UnsetPreferredLocation => None,
    }
}
