//! A copy in the parts that the driver takes, where host memory is registered in part.

use transload_cuda_sys::{DriverError, RawStream, ffi};
use transload_memory::registration_edges;

use crate::calls::{Side, copy_once};

impl Side {
    /// Offsets at which a registration begins or ends.
    fn edges(self, bytes: usize) -> Vec<usize> {
        let Self::Host(address) = self else { return Vec::new() };
        let start = address.addr();
        let edges = registration_edges(&(start..start.saturating_add(bytes)));
        edges.into_iter().map(|edge| edge - start).collect()
    }

    fn behind(self, offset: usize) -> Self {
        match self {
            Self::Host(address) => Self::Host(address.wrapping_byte_add(offset)),
            Self::Device(address) => Self::Device(address + offset as u64),
        }
    }
}

/// Does what the driver refused to do at once: a range that begins in a registration and leaves it, it does not take.
///
/// # Errors
/// `refused` where no registration ends within the memory; the driver's, and then nothing is in flight.
///
/// # Safety
/// * As for [`Calls::make`](crate::calls::Calls::make).
#[cold]
pub(crate) unsafe fn copy_in_parts(
    src: Side,
    dst: Side,
    bytes: usize,
    stream: RawStream,
    refused: DriverError,
) -> Result<(), DriverError> {
    let mut edges = [src.edges(bytes), dst.edges(bytes)].concat();
    if edges.is_empty() {
        return Err(refused);
    }
    edges.sort_unstable();
    edges.push(bytes);
    let mut from = 0;
    for to in edges {
        // SAFETY: the caller's promise; the parts lie within the ranges.
        let part = unsafe { copy_once(src.behind(from), dst.behind(from), to - from, stream) };
        if let Err(error) = part {
            if from > 0 {
                // Nobody would wait for the parts before.
                // SAFETY: the caller's promise: the stream is alive.
                let _its_error_is_known = unsafe { ffi::cuStreamSynchronize(stream) };
            }
            return Err(error);
        }
        from = to;
    }
    Ok(())
}
