//! A prefetch by raw address, ordered by its stream only.

use transload_core::{DeviceId, Error, ErrorKind, Queue, Result};
use transload_cuda_sys::{Context, Device, RawStream, check, ffi};

use super::{MemoryLocation, PrefetchTarget, explain_hint};
use crate::lift;

/// A queue's driver stream, with the context for calls on it.
pub(super) struct HintStream<'a> {
    queue: &'a dyn Queue,
    context: Context,
}

impl<'a> HintStream<'a> {
    /// Reuses the context `known` if it is that of the stream's device.
    pub(super) fn of(queue: &'a dyn Queue, known: Option<&Context>) -> Result<Self> {
        let DeviceId::Cuda(ordinal) = queue.device() else {
            let text = format!(
                "unified memory is prefetched on a CUDA stream, not on a queue of {}",
                queue.device()
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let context = match known.filter(|context| context.device().ordinal() == ordinal) {
            Some(context) => context.clone(),
            None => Device::new(ordinal).and_then(Context::primary).map_err(lift)?,
        };
        Ok(Self { queue, context })
    }

    /// Enqueues the migration of `bytes` bytes at `address`. Safe for any address: the driver refuses memory that is
    /// not managed, a free waits for work on it, and content does not change.
    pub(super) fn prefetch(&self, address: u64, bytes: usize, to: MemoryLocation) -> Result<()> {
        let target = PrefetchTarget::new(to)?;
        // Default streams belong to the current context.
        let _bound = self.context.enter().map_err(lift)?;
        let mut outcome = Ok(());
        self.queue.with_raw_handle(&mut |handle| {
            let stream = std::ptr::with_exposed_provenance_mut(handle);
            outcome = refuse_captured(stream).and_then(|()| {
                // SAFETY: a queue of a CUDA device names a stream of its primary context, in the calling thread, which is alive
                // while the queue is, and the queue is borrowed.
                unsafe { target.enqueue(address, bytes, stream) }
                    .map_err(|error| explain_hint(error, address, bytes, to))
            });
        })?;
        outcome
    }
}

/// Refuses a stream being captured: graphs take no prefetch, and the attempt would invalidate the capture.
fn refuse_captured(stream: RawStream) -> Result<()> {
    let mut status = 0;
    // SAFETY: the stream is alive; the driver stores the status in one 32-bit number.
    check("cuStreamIsCapturing", unsafe { ffi::cuStreamIsCapturing(stream, &raw mut status) })
        .map_err(lift)?;
    if status == 0 || transload_core::mutant!("memory/captured-stream-refused") {
        return Ok(());
    }
    let text = "the stream is being captured, and graphs take no prefetch; use another stream";
    Err(Error::new(ErrorKind::Busy, text))
}
