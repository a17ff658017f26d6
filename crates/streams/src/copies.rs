//! A stream's own copies, fills and prefetches: safe ones, whose memory is owned, and raw ones for frameworks.

use std::time::Instant;

use transload_core::{
    CostBasis, DeviceId, Error, ErrorKind, Operation, Pattern, RawBuffer, Result, Timing, Transfer,
    TransferMethod, TransferPath, TransferReport, submit,
};
use transload_cuda_sys::{AsStream, check, ffi};
use transload_memory::lift;

use crate::CudaStream;

impl CudaStream {
    /// Copies all of a host buffer to device or unified memory. Enqueued when this returns; see [`Transfer`].
    pub fn copy_from_host_async(&self, src: &RawBuffer, dst: &RawBuffer) -> Transfer {
        self.start(Operation::Copy { src, dst }, src, dst)
    }

    /// Copies all of a device or unified buffer to host memory. Enqueued when this returns; see [`Transfer`].
    pub fn copy_to_host_async(&self, src: &RawBuffer, dst: &RawBuffer) -> Transfer {
        self.start(Operation::Copy { src, dst }, src, dst)
    }

    /// Copies within the device. Enqueued when this returns; see [`Transfer`].
    pub fn copy_device_to_device_async(&self, src: &RawBuffer, dst: &RawBuffer) -> Transfer {
        self.start(Operation::Copy { src, dst }, src, dst)
    }

    /// Fills device or unified memory with a pattern of 1, 2 or 4 bytes.
    pub fn memset_async(&self, dst: &RawBuffer, pattern: Pattern) -> Transfer {
        self.start(Operation::Fill { dst, pattern }, dst, dst)
    }

    /// Moves unified memory to a device; `None` means the stream's own.
    pub fn prefetch_to_device_async(&self, buffer: &RawBuffer, ordinal: Option<u32>) -> Transfer {
        let to = ordinal.map_or(self.device(), DeviceId::Cuda);
        self.start(Operation::Prefetch { buffer, to }, buffer, buffer)
    }

    /// Moves unified memory to the host.
    pub fn prefetch_to_host_async(&self, buffer: &RawBuffer) -> Transfer {
        self.start(Operation::Prefetch { buffer, to: DeviceId::Cpu }, buffer, buffer)
    }

    fn start(&self, operation: Operation<'_>, src: &RawBuffer, dst: &RawBuffer) -> Transfer {
        let begun = Instant::now();
        match submit(self, &operation, Timing::Off) {
            Ok(fence) => {
                let path = TransferPath::new(src.place(), dst.place());
                let mut report = TransferReport::planned(
                    path,
                    TransferMethod::DirectCopy,
                    self.device(),
                    dst.len() as u64,
                );
                report.basis = CostBasis::User;
                report.submitting = begun.elapsed();
                Transfer::submitted(fence, report, begun, None)
            }
            Err(error) => Transfer::refused(error),
        }
    }

    /// Enqueues a copy between raw addresses of unified addressing, for frameworks that keep their own order.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes; the driver's.
    ///
    /// # Safety
    /// * Both ranges are valid for `bytes` bytes on this stream's device (host memory must be pinned or stay alive and
    ///   untouched until the stream has done the copy), and do not overlap.
    /// * Nothing uses them in conflict until then. Buffers of this library do not know about this copy.
    pub unsafe fn copy_raw_async(&self, dst: u64, src: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "a copy needs at least 1 byte"));
        }
        let _bound = self.context().enter().map_err(lift)?;
        // SAFETY: the caller's promise.
        check("cuMemcpyAsync", unsafe { ffi::cuMemcpyAsync(dst, src, bytes, self.as_raw()) }).map_err(lift)
    }
}
