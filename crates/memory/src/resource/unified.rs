//! Managed memory as a resource, beyond what the device has free where that is asked for.
//!
//! Every method may be called from any thread. Segments are used by streams of the device, and by the host while none of them
//! is at work on them; the buffers cut from them see to that order.

use std::sync::Arc;

use transload_core::{Error, ErrorKind, MemoryInfo, MemoryKind, RawBuffer, Result};

use super::{CudaResource, MemoryResource};
use crate::{CudaMemoryManager, manager::Terms};

/// Segments of managed memory. What the device has not free is refused with the numbers, unless the resource was told to
/// [allow oversubscription](Self::allow_oversubscription): then the driver moves pages out to make room, which can be many
/// times slower than a copy.
#[derive(Clone, Debug)]
pub struct UnifiedResource {
    memory: CudaResource,
}

impl UnifiedResource {
    /// Managed memory of the manager's device.
    ///
    /// # Errors
    /// `Unsupported` where the device has none.
    pub fn new(manager: &Arc<CudaMemoryManager>) -> Result<Self> {
        Ok(Self { memory: CudaResource::new(manager, MemoryKind::Unified)? })
    }

    /// Whether more than the device has free is given.
    #[must_use]
    pub fn allow_oversubscription(mut self, allow: bool) -> Self {
        self.memory.terms = if allow { Terms::Oversubscribed } else { Terms::Usual };
        self
    }
}

// SAFETY: the segments are the wrapped resource's.
unsafe impl MemoryResource for UnifiedResource {
    as_upstream!(memory: place device trim);

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        self.memory.allocate_segment(bytes)
    }

    /// Free and total bytes of the device; `Unsupported` where more than that is given.
    fn info(&self) -> Result<MemoryInfo> {
        if self.memory.terms == Terms::Oversubscribed {
            let text = "oversubscribed memory is bounded by the host's and the device's together, which nobody tells";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        self.memory.info()
    }
}
