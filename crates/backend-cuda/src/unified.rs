//! The backend's methods for unified memory.

use transload_core::{
    DeviceId, MemoryAdvice, MemoryKind, Place, Pod, Result, StreamPriority, Transfer, WorkloadType,
};
use transload_memory::{CudaFeature, UnifiedBuffer, UnifiedMode};

use crate::{CudaBackend, buffer_cache::MemorySide};

impl CudaBackend {
    /// Returns whether the device has managed memory (compute capability 3.0 or higher). [`UnifiedMode::of`] tells
    /// whether host and device may use it concurrently; [`allocate_unified`](Self::allocate_unified) works in either
    /// case.
    ///
    /// # Errors
    /// `UnknownDevice`, or the driver's.
    pub fn supports_unified_memory(&self, ordinal: u32) -> Result<bool> {
        self.device(ordinal)?.supports_feature(CudaFeature::ManagedMemory)
    }

    /// Allocates a zeroed buffer of `len` elements that the host and the device with this ordinal share. Its memory is
    /// freed when it is dropped and nothing in flight uses it.
    ///
    /// # Errors
    /// `UnknownDevice`; `InvalidArgument` if `len` is 0 or the size overflows; `OutOfMemory` with the bytes requested,
    /// free and in total; the driver's.
    pub fn allocate_unified<T: Pod>(&self, ordinal: u32, len: usize) -> Result<UnifiedBuffer<T>> {
        self.allocate_unified_as(ordinal, len, UnifiedMode::of(self.device(ordinal)?)?)
    }

    /// Like [`allocate_unified`](Self::allocate_unified), but in a given mode.
    ///
    /// # Errors
    /// Those of `allocate_unified`, and `Unsupported` for [`UnifiedMode::Managed`] on a device without it.
    pub fn allocate_unified_as<T: Pod>(
        &self,
        ordinal: u32,
        len: usize,
        mode: UnifiedMode,
    ) -> Result<UnifiedBuffer<T>> {
        let state = self.state(DeviceId::Cuda(ordinal))?;
        let side = if mode == UnifiedMode::Explicit { MemorySide::Both } else { MemorySide::Device };
        let what = (Place::new(state.id, MemoryKind::Unified), len.saturating_mul(size_of::<T>()));
        state.retry_after_trim(side, what, |memory| {
            let queue = state.pool.lease(StreamPriority::Normal, WorkloadType::Memory)?.into_queue();
            UnifiedBuffer::new_with_mode(memory, queue, len, mode)
        })
    }

    /// Prefetches a buffer to a device; `None` means its own. Enqueued on the buffer's queue before this returns.
    pub fn prefetch_to_device<T: Pod>(&self, buffer: &UnifiedBuffer<T>, ordinal: Option<u32>) -> Transfer {
        buffer.prefetch_to_device(ordinal)
    }

    /// Prefetches a buffer to the host. Enqueued on the buffer's queue before this returns.
    pub fn prefetch_to_host<T: Pod>(&self, buffer: &UnifiedBuffer<T>) -> Transfer {
        buffer.prefetch_to_host()
    }

    /// Advises the driver on the placement of a buffer.
    ///
    /// # Errors
    /// Those of [`UnifiedBuffer::advise`].
    pub fn set_memory_advice<T: Pod>(&self, buffer: &UnifiedBuffer<T>, advice: MemoryAdvice) -> Result<()> {
        buffer.advise(advice)
    }
}
