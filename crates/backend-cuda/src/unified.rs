//! Typed unified memory from the backend, and what is asked of it by the backend's own names.

use transload_core::{DeviceId, MemoryAdvice, Pod, Result, StreamPriority, Transfer, WorkloadType};
use transload_memory::{CudaFeature, UnifiedBuffer, UnifiedMode};

use crate::{CudaBackend, buffer_cache::MemorySide};

impl CudaBackend {
    /// Whether the device's driver has managed memory (compute capability 3.0 or higher). [`UnifiedMode::of`] tells whether host
    /// and device may use it at the same time; [`allocate_unified`](Self::allocate_unified) works in either case.
    ///
    /// # Errors
    /// `UnknownDevice`, or the driver's.
    pub fn supports_unified_memory(&self, ordinal: u32) -> Result<bool> {
        self.device(ordinal)?.supports_feature(CudaFeature::ManagedMemory)
    }

    /// A buffer of `len` elements that the host and the device with this ordinal share, all bytes zero. It gives its memory back
    /// when it is dropped and nothing in flight uses it.
    ///
    /// # Errors
    /// `UnknownDevice`; `InvalidArgument` where `len` is 0 or the size overflows; `OutOfMemory` with the bytes requested, free
    /// and in all; the driver's.
    pub fn allocate_unified<T: Pod>(&self, ordinal: u32, len: usize) -> Result<UnifiedBuffer<T>> {
        self.allocate_unified_as(ordinal, len, UnifiedMode::of(self.device(ordinal)?)?)
    }

    /// As [`allocate_unified`](Self::allocate_unified), in a mode.
    ///
    /// # Errors
    /// As for `allocate_unified`, and `Unsupported` for [`UnifiedMode::Managed`] on a device that has it not.
    pub fn allocate_unified_as<T: Pod>(
        &self,
        ordinal: u32,
        len: usize,
        mode: UnifiedMode,
    ) -> Result<UnifiedBuffer<T>> {
        let state = self.state(DeviceId::Cuda(ordinal))?;
        let side = if mode == UnifiedMode::Explicit { MemorySide::Both } else { MemorySide::Device };
        state.retry_after_trim(side, |memory| {
            let queue = state.pool.lease(StreamPriority::Normal, WorkloadType::Memory)?.into_queue();
            UnifiedBuffer::new_with_mode(memory, queue, len, mode)
        })
    }

    /// Moves a buffer to a device; `None` means its own. Enqueued when this returns, on the buffer's queue.
    pub fn prefetch_to_device<T: Pod>(&self, buffer: &UnifiedBuffer<T>, ordinal: Option<u32>) -> Transfer {
        buffer.prefetch_to_device(ordinal)
    }

    /// Moves a buffer to the host. Enqueued when this returns, on the buffer's queue.
    pub fn prefetch_to_host<T: Pod>(&self, buffer: &UnifiedBuffer<T>) -> Transfer {
        buffer.prefetch_to_host()
    }

    /// Advises the driver on where a buffer should be.
    ///
    /// # Errors
    /// Those of [`UnifiedBuffer::advise`].
    pub fn set_memory_advice<T: Pod>(&self, buffer: &UnifiedBuffer<T>, advice: MemoryAdvice) -> Result<()> {
        buffer.advise(advice)
    }
}
