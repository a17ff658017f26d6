//! Advice on where a unified buffer should be.

use transload_core::{DeviceId, MemoryAdvice, Pod, Result};

use super::{UnifiedBuffer, UnifiedMode};
use crate::{CudaDevice, ManagedMemoryHints, advise, hints::place_of};

/// Advice changes where pages are, never what is in them, and may be given at any time. Where the mode is
/// [`Explicit`](UnifiedMode::Explicit) there are no pages to advise about: it is checked, and has no effect.
impl<T: Pod> UnifiedBuffer<T> {
    /// Advises the driver on all of it.
    ///
    /// # Errors
    /// `UnknownDevice` naming the valid ordinals, `Unsupported` for a device that cannot have unified memory; the driver's.
    pub fn advise(&self, advice: MemoryAdvice) -> Result<()> {
        // The next role gives its own again.
        self.inner.state.lock().place.advised = None;
        match (self.mode(), place_of(advice)) {
            (UnifiedMode::Managed, _) => advise(&self.inner.raw, advice),
            (UnifiedMode::Explicit, Some(DeviceId::Cuda(ordinal))) => CudaDevice::new(ordinal).map(|_| ()),
            (UnifiedMode::Explicit, Some(place)) => self.inner.check_place(place),
            (UnifiedMode::Explicit, None) => Ok(()),
        }
    }

    /// All that can be advised and asked about managed memory, over this buffer's.
    ///
    /// # Errors
    /// `Unsupported` where the mode is [`Explicit`](UnifiedMode::Explicit).
    pub fn hints(&self) -> Result<ManagedMemoryHints> {
        ManagedMemoryHints::from_unified(&self.inner.raw)
    }

    /// The device with this ordinal will use it and should have it mapped.
    ///
    /// # Errors
    /// As for [`advise`](Self::advise).
    pub fn set_accessed_by(&self, ordinal: u32) -> Result<()> {
        self.advise(MemoryAdvice::SetAccessedBy(DeviceId::Cuda(ordinal)))
    }

    /// It should stay at a device, or at the host.
    ///
    /// # Errors
    /// As for [`advise`](Self::advise).
    pub fn set_preferred_location(&self, place: DeviceId) -> Result<()> {
        self.advise(MemoryAdvice::SetPreferredLocation(place))
    }
}
