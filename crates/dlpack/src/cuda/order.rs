//! The consumer's stream behind our work, and our work behind the consumer's stream.

use std::ptr;

use transload_core::{Result, StreamPriority};
use transload_cuda_sys::AsStream;
use transload_memory::CudaDevice;
use transload_streams::CudaStream;

use crate::{ConsumerStream, Export, export::Order};

impl Export<'_> {
    /// The consumer uses the memory on this stream, which waits on the device for earlier work on the buffer, while the host
    /// does not. At the deleter the loan ends behind what is enqueued on the stream by then. Of memory that is shown as the
    /// host's the host waits for earlier work all the same.
    pub fn for_stream(mut self, stream: &CudaStream) -> Self {
        self.order = Order::Streams(stream.clone(), stream.clone());
        self
    }

    /// As [`for_stream`](Self::for_stream), for the stream that the consumer names (`__dlpack__(stream=...)`) on `device`.
    /// With [`ConsumerStream::NoSync`] nobody waits for anything, neither before nor at the deleter.
    ///
    /// # Errors
    /// `InvalidArgument` for a stream of another context, where the driver can tell; the driver's.
    ///
    /// # Safety
    /// * A handle is one of a stream of the device's primary context. The stream lives until the deleter has returned and the
    ///   buffer's memory was used again or given back (PyTorch's streams live as long as the process).
    /// * With `NoSync` the consumer uses the memory only after what is in flight on the buffer now, by means of its own, and
    ///   is done with it when it calls the deleter.
    pub unsafe fn for_consumer(mut self, device: &CudaDevice, stream: ConsumerStream) -> Result<Self> {
        self.order = match stream {
            ConsumerStream::NoSync => Order::Consumer,
            ConsumerStream::LegacyDefault => {
                let legacy = CudaStream::legacy_default(device)?;
                Order::Streams(legacy.clone(), legacy)
            }
            ConsumerStream::PerThreadDefault => {
                // The deleter may run on another thread, where the handle would mean another stream. The legacy stream waits
                // for the default streams of all threads.
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

/// What to pass as `stream` to a producer's `__dlpack__`, so that it puts this stream behind its work: then the stream's
/// `fence()` is what [`ManagedTensor::from_raw`](crate::ManagedTensor::from_raw) wants. The stream must live until the
/// producer has answered.
#[must_use]
pub fn protocol_stream(stream: &CudaStream) -> i64 {
    match stream.as_raw().addr() {
        // The legacy default stream; 0 is not allowed.
        0 => 1,
        handle => handle.cast_signed() as i64,
    }
}
