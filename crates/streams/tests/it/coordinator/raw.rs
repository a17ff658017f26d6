//! Raw copies, which only dependencies and barriers order.

use transload_core::RawBuffer;
use transload_streams::{CudaStream, MultiStreamCoordinator};

/// A coordinator with these streams registered.
pub(crate) fn over<'a>(streams: impl IntoIterator<Item = &'a CudaStream>) -> MultiStreamCoordinator {
    let coordinator = MultiStreamCoordinator::new();
    for stream in streams {
        assert!(coordinator.register(stream));
    }
    coordinator
}

fn address(buffer: &RawBuffer) -> u64 {
    let host = || buffer.host_address().unwrap().as_ptr() as u64;
    buffer.device_address().unwrap_or_else(host)
}

/// Copies all of `src` to `dst`. The caller synchronises before it drops either.
pub(crate) fn copy(stream: &CudaStream, src: &RawBuffer, dst: &RawBuffer) {
    assert_eq!(src.len(), dst.len());
    // SAFETY: both ranges are valid and disjoint; tests keep the buffers until the streams are synchronised, and order
    // conflicting copies by the coordinator under test.
    unsafe { stream.copy_raw_async(address(dst), address(src), src.len()) }.unwrap();
}
