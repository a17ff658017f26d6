//! Orders work of this library and of the consumer on streams.

use std::ptr;

use transload_core::{Result, StreamPriority};
use transload_cuda_sys::AsStream;
use transload_memory::CudaDevice;
use transload_streams::CudaStream;

use crate::{ConsumerStream, Export, export::Order};

impl Export<'_> {
    /// Exports for use on this stream. The stream waits for earlier work on the buffer; the host does not, unless the
    /// tensor is shown as host memory. When the deleter is called, the loan ends after the work enqueued on the stream
    /// so far.
    pub fn for_stream(mut self, stream: &CudaStream) -> Self {
        self.order = Order::Streams(stream.clone(), stream.clone());
        self
    }

    /// Like [`for_stream`](Self::for_stream), but for the stream that the consumer passes to `__dlpack__(stream=...)`.
    /// With [`ConsumerStream::NoSync`], nothing is waited for, neither before the export nor at the deleter.
    ///
    /// # Errors
    /// `InvalidArgument` for a stream of another context, if the driver can tell; errors of the driver.
    ///
    /// # Safety
    /// * A handle is one of a stream of the device's primary context. The stream lives until the deleter has returned
    ///   and the buffer's memory was used again or freed (PyTorch's streams live as long as the process).
    /// * With `NoSync`, the consumer orders its uses after the work that is in flight on the buffer now, and has
    ///   completed them when it calls the deleter.
    pub unsafe fn for_consumer(mut self, device: &CudaDevice, stream: ConsumerStream) -> Result<Self> {
        self.order = match stream {
            ConsumerStream::NoSync => Order::Consumer,
            ConsumerStream::LegacyDefault => {
                let legacy = CudaStream::legacy_default(device)?;
                Order::Streams(legacy.clone(), legacy)
            }
            ConsumerStream::PerThreadDefault => {
                // On another thread, the per-thread handle means another stream. The legacy stream waits for the
                // default streams of all threads.
                Order::Streams(CudaStream::per_thread_default(device)?, CudaStream::legacy_default(device)?)
            }
            ConsumerStream::Handle(handle) => {
                let raw = ptr::with_exposed_provenance_mut(handle);
                // SAFETY: the caller's promise.
                let theirs = unsafe { CudaStream::from_raw(device, raw, StreamPriority::Normal) }?;
                Order::Streams(theirs.clone(), theirs)
            }
        };
        Ok(self)
    }
}

/// Returns the `stream` argument for a producer's `__dlpack__`, which then makes this stream wait for its work. Pass
/// the stream's next `fence()` to [`ManagedTensor::from_raw`](crate::ManagedTensor::from_raw). The stream must live
/// until `__dlpack__` has returned.
#[must_use]
pub fn protocol_stream(stream: &CudaStream) -> i64 {
    match stream.as_raw().addr() {
        // The legacy default stream; 0 is not allowed.
        0 => 1,
        handle => handle.cast_signed() as i64,
    }
}
