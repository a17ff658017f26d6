//! The driver's stream, and what keeps it alive if other code owns it.

use std::{any::Any, ops::Deref};

use transload_cuda_sys::Stream;
use transload_memory::CudaDevice;

/// A stream of this crate's own, or one of other code with its owner.
pub(crate) struct StreamHandle {
    stream: Stream,
    /// Dropped by the device's queue when nothing uses the stream any more.
    owner: Option<(Box<dyn Any + Send>, CudaDevice)>,
}

// SAFETY: a shared reference does not reach the owner, which is Send; the rest is Sync.
unsafe impl Sync for StreamHandle {}

impl StreamHandle {
    pub(crate) fn with_owner(stream: Stream, owner: Box<dyn Any + Send>, device: &CudaDevice) -> Self {
        if transload_core::mutant!("streams/stream-owner-stays") {
            device.drop_later(owner, Vec::new());
            return stream.into();
        }
        Self { stream, owner: Some((owner, device.clone())) }
    }
}

impl From<Stream> for StreamHandle {
    fn from(stream: Stream) -> Self {
        Self { stream, owner: None }
    }
}

impl Deref for StreamHandle {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        if let Some((owner, device)) = self.owner.take() {
            if transload_core::mutant!("streams/stream-owner-by-drop-queue") {
                return drop(owner);
            }
            device.drop_later(owner, Vec::new());
        }
    }
}
