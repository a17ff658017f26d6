//! Splits copies at the bounds of partially registered host memory.

use transload_core::Pitched;
use transload_cuda_sys::{DriverError, RawStream};
use transload_memory::registration_edges;

use super::{
    addresses::DriverAddress,
    driver_calls::{copy, copy_once},
};

impl DriverAddress {
    /// Returns the offsets at which a registration begins or ends.
    fn edges(self, bytes: usize) -> Vec<usize> {
        let Self::Host(address) = self else { return Vec::new() };
        let start = address.addr();
        let edges = registration_edges(&(start..start.saturating_add(bytes)));
        edges.into_iter().map(|edge| edge - start).collect()
    }

    pub(super) fn behind(self, offset: usize) -> Self {
        match self {
            Self::Host(address) => Self::Host(address.wrapping_byte_add(offset)),
            Self::Device(address) => Self::Device(address + offset as u64),
        }
    }
}

/// Copies in parts: the driver rejects a range that begins in a registration and ends outside it.
///
/// # Errors
/// `refused` if no registration ends within the memory; the driver's. Earlier parts may be in flight then, as
/// `in_flight` says.
///
/// # Safety
/// * As for [`DriverCalls::make`](crate::submit::driver_calls::DriverCalls::make).
#[cold]
pub(crate) unsafe fn split_copy(
    src: DriverAddress,
    dst: DriverAddress,
    bytes: usize,
    stream: RawStream,
    refused: DriverError,
    in_flight: &mut bool,
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
        unsafe { copy_once(src.behind(from), dst.behind(from), to - from, stream) }?;
        *in_flight = !transload_core::mutant!("streams/parts-under-way");
        from = to;
    }
    Ok(())
}

/// As [`split_copy`], row by row.
///
/// # Errors
/// As for `split_copy`.
///
/// # Safety
/// * As for [`DriverCalls::make`](crate::submit::driver_calls::DriverCalls::make).
#[cold]
pub(crate) unsafe fn split_rows(
    src: DriverAddress,
    dst: DriverAddress,
    rows: Pitched,
    stream: RawStream,
    refused: DriverError,
    in_flight: &mut bool,
) -> Result<(), DriverError> {
    let span = |pitch: usize| rows.height.saturating_mul(pitch);
    if src.edges(span(rows.src_pitch)).is_empty() && dst.edges(span(rows.dst_pitch)).is_empty() {
        return Err(refused);
    }
    for row in 0..rows.height {
        let (from, to) = (src.behind(row * rows.src_pitch), dst.behind(row * rows.dst_pitch));
        // SAFETY: the caller's promise; a row lies within the ranges.
        unsafe { copy(from, to, rows.width, stream, in_flight) }?;
        *in_flight = true;
    }
    Ok(())
}
