//! Advice on the location of a unified buffer.

use transload_core::{DeviceId, MemoryAdvice, Pod, Result};

use super::{UnifiedBuffer, UnifiedMode};
use crate::{CudaDevice, ManagedMemoryHints, advise, hints::place_of};

/// Advice moves pages, never changes content, and may be given at any time. In the [`Explicit`](UnifiedMode::Explicit)
/// mode it is validated and has no effect.
impl<T: Pod> UnifiedBuffer<T> {
    /// Gives the driver advice on the whole buffer.
    ///
    /// # Errors
    /// `UnknownDevice` naming the valid ordinals, `Unsupported` for a device that cannot have unified memory; the driver's.
    pub fn advise(&self, advice: MemoryAdvice) -> Result<()> {
        // The next role must give its advice again.
        self.inner.state.lock().place.advised = None;
        match (self.mode(), place_of(advice)) {
            (UnifiedMode::Managed, _) => advise(&self.inner.raw, advice),
            (UnifiedMode::Explicit, Some(DeviceId::Cuda(ordinal))) => CudaDevice::new(ordinal).map(|_| ()),
            (UnifiedMode::Explicit, Some(place)) => self.inner.check_place(place),
            (UnifiedMode::Explicit, None) => Ok(()),
        }
    }

    /// Returns all hints for managed memory, over this buffer.
    ///
    /// # Errors
    /// `Unsupported` in the [`Explicit`](UnifiedMode::Explicit) mode.
    pub fn hints(&self) -> Result<ManagedMemoryHints> {
        ManagedMemoryHints::from_unified(&self.inner.raw)
    }

    /// Advises that the device with this ordinal accesses the buffer and should have it mapped.
    ///
    /// # Errors
    /// As for [`advise`](Self::advise).
    pub fn set_accessed_by(&self, ordinal: u32) -> Result<()> {
        self.advise(MemoryAdvice::SetAccessedBy(DeviceId::Cuda(ordinal)))
    }

    /// Advises that the buffer should stay on a device, or on the host.
    ///
    /// # Errors
    /// As for [`advise`](Self::advise).
    pub fn set_preferred_location(&self, place: DeviceId) -> Result<()> {
        self.advise(MemoryAdvice::SetPreferredLocation(place))
    }
}
