//! Advice by core's words, over a buffer.

use transload_core::{DeviceId, MemoryAdvice, RawBuffer, Result};

use super::{
    MemoryLocation,
    calls::{Advice, advise_range, context_for, range_of},
};

/// Advises the driver on a buffer, or a slice of one, of unified memory. The driver keeps it from then on; the call moves and
/// changes no content, waits for nothing, and may be made while work is in flight.
///
/// The driver keeps advice by whole pages of the host, which a range's ends are rounded out to: advice on a slice reaches the
/// rest of its first and last page. It is forgotten with the allocation: a pool's block keeps what its last user advised, and
/// so do its neighbours in a page.
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

/// What is advised, and about which place; the host stands where advice looks at none.
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

/// Returns the place that advice is about, if any.
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
