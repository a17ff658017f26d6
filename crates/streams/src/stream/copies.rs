//! Safe copies, fills and prefetches of owned buffers.

use transload_core::{
    DeviceId, Operation, Pattern, Place, RawBuffer, Timing, Transfer, TransferMethod, submit_on,
};

use crate::CudaStream;

impl CudaStream {
    /// Copies all of a host buffer to device or unified memory. Enqueued when this returns; see [`Transfer`].
    pub fn copy_from_host_async(&self, src: &RawBuffer, dst: &RawBuffer) -> Transfer {
        self.start_copy(src, dst)
    }

    /// Copies all of a device or unified buffer to host memory. Enqueued when this returns; see [`Transfer`].
    pub fn copy_to_host_async(&self, src: &RawBuffer, dst: &RawBuffer) -> Transfer {
        self.start_copy(src, dst)
    }

    /// Copies within the device. Enqueued when this returns; see [`Transfer`].
    pub fn copy_device_to_device_async(&self, src: &RawBuffer, dst: &RawBuffer) -> Transfer {
        self.start_copy(src, dst)
    }

    /// Fills device or unified memory with a pattern of 1, 2, 4, 8 or 16 bytes. Enqueued when this returns; see
    /// [`Transfer`]. The first fill of 8 or 16 bytes in a context loads this crate's kernels, which takes
    /// milliseconds, unless a pool [prepared](crate::AdvancedStreamPool::prepare_in_place) them. For elements of any
    /// size use [`transload_core::fill`].
    pub fn memset_async(&self, dst: &RawBuffer, pattern: Pattern) -> Transfer {
        let place = dst.place();
        self.start(Operation::Fill { dst, pattern }, TransferMethod::Fill, (place, place), dst.len())
    }

    /// Moves unified memory to a device; `None` means the stream's own.
    pub fn prefetch_to_device_async(&self, buffer: &RawBuffer, ordinal: Option<u32>) -> Transfer {
        self.start_prefetch(buffer, ordinal.map_or(self.device(), DeviceId::Cuda))
    }

    /// Moves unified memory to the host.
    pub fn prefetch_to_host_async(&self, buffer: &RawBuffer) -> Transfer {
        self.start_prefetch(buffer, DeviceId::Cpu)
    }

    fn start_prefetch(&self, buffer: &RawBuffer, to: DeviceId) -> Transfer {
        let from = buffer.place();
        let path = (from, Place::new(to, from.kind));
        self.start(Operation::Prefetch { buffer, to }, TransferMethod::UnifiedMemory, path, buffer.len())
    }

    fn start_copy(&self, src: &RawBuffer, dst: &RawBuffer) -> Transfer {
        let path = (src.place(), dst.place());
        self.start(Operation::Copy { src, dst }, TransferMethod::DirectCopy, path, dst.len())
    }

    /// Always inlined, so that the kind of operation is known at compile time.
    #[inline(always)]
    fn start(
        &self,
        operation: Operation<'_>,
        method: TransferMethod,
        (from, to): (Place, Place),
        bytes: usize,
    ) -> Transfer {
        match submit_on(self, &operation, Timing::Off) {
            Ok(fence) => Transfer::direct(fence, method, from, to, bytes),
            Err(error) => Transfer::refused(error),
        }
    }
}
