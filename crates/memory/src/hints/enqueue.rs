//! A prefetch by raw address on someone's stream: in the stream's order, and in no other.

use transload_core::{DeviceId, Error, ErrorKind, Queue, Result};
use transload_cuda_sys::{Context, Device, RawStream, check, ffi};

use super::{MemoryLocation, PrefetchTarget, explain_hint};
use crate::lift;

/// Enqueues the migration of `bytes` bytes at `address`. Safe whatever the address: the driver refuses what is not managed
/// memory, waits with freeing for the work on it, and changes no content.
pub(super) fn prefetch_address(
    address: u64,
    bytes: usize,
    to: MemoryLocation,
    stream: &dyn Queue,
) -> Result<()> {
    let target = PrefetchTarget::new(to)?;
    let (DeviceId::Cuda(ordinal), Some(handle)) = (stream.device(), stream.raw_handle()) else {
        let text =
            format!("unified memory is prefetched on a CUDA stream, not on a queue of {}", stream.device());
        return Err(Error::new(ErrorKind::Unsupported, text));
    };
    let raw: RawStream = std::ptr::with_exposed_provenance_mut(handle);
    // The default streams are those of the current context.
    let context = Device::new(ordinal).and_then(Context::primary).map_err(lift)?;
    let _bound = context.enter().map_err(lift)?;
    refuse_captured(raw)?;
    // SAFETY: a queue of a CUDA device names a stream of its primary context, which is alive while the queue is.
    unsafe { target.enqueue(address, bytes, raw) }.map_err(|error| explain_hint(error, address, bytes, to))
}

/// The driver takes no prefetch into a graph, and the attempt would cost whoever captures it.
fn refuse_captured(stream: RawStream) -> Result<()> {
    let mut status = 0;
    // SAFETY: the stream is alive; the driver stores the status in one 32-bit number.
    check("cuStreamIsCapturing", unsafe { ffi::cuStreamIsCapturing(stream, &raw mut status) })
        .map_err(lift)?;
    if status == 0 {
        return Ok(());
    }
    let text = "the stream is being captured into a graph, which takes no prefetch; prefetch on another one";
    Err(Error::new(ErrorKind::Busy, text))
}
