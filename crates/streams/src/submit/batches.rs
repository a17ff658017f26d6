//! Batches of copies by copy engines: neighbours joined, then by one driver call for many if the driver has it.

use std::sync::OnceLock;

use transload_core::{MemoryKind, RawBuffer, runs_by_allocation};
use transload_cuda_sys::{Driver, DriverError, RawStream, check, ffi};

use super::{
    addresses::driver_address,
    driver_calls::{INVALID_VALUE, copy},
};
use crate::built_in::SINGLE_CALLS;

/// Most copies of one call.
const MOST: usize = 1024;
/// The last handle of a default stream; batches on the legacy one are refused.
pub(super) const LAST_DEFAULT_STREAM: usize = 2;
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: u32 = 801;

/// The form of the driver's call for many copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchCall {
    /// `cuMemcpyBatchAsync_v2` of CUDA 13.0.
    Current,
    /// `cuMemcpyBatchAsync` of CUDA 12.8.
    First,
    /// None, or not on this stream.
    Absent,
}

impl BatchCall {
    /// Returns the newest form that the driver has.
    pub(crate) fn get() -> Self {
        static CALL: OnceLock<BatchCall> = OnceLock::new();
        *CALL.get_or_init(|| match Driver::get() {
            Ok(driver) if driver.has(c"cuMemcpyBatchAsync_v2") => Self::Current,
            Ok(driver) if driver.has(c"cuMemcpyBatchAsync") => Self::First,
            _ => Self::Absent,
        })
    }
}

/// Returns the first of each sequence of pairs of the same two allocations.
pub(crate) fn by_allocations(
    pairs: &[(RawBuffer, RawBuffer)],
) -> impl Iterator<Item = &(RawBuffer, RawBuffer)> {
    runs_by_allocation(pairs).filter_map(<[_]>::first)
}

/// Source, destination and length of each copy: pairs that follow each other in both allocations are one, and empty ones are left out.
#[derive(Clone, Debug)]
pub(crate) struct Joined<'a>(pub(crate) &'a [(RawBuffer, RawBuffer)]);

impl<'a> Iterator for Joined<'a> {
    type Item = (&'a RawBuffer, &'a RawBuffer, usize);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (src, dst) = loop {
            let [first, rest @ ..] = self.0 else { return None };
            self.0 = rest;
            if !first.0.is_empty() {
                break (&first.0, &first.1);
            }
        };
        let mut bytes = src.len();
        while let [(from, to), rest @ ..] = self.0 {
            let follows = from.offset() == src.offset() + bytes && to.offset() == dst.offset() + bytes;
            if !(from.is_empty() || follows && from.shares_allocation(src) && to.shares_allocation(dst)) {
                break;
            }
            bytes += from.len();
            self.0 = rest;
        }
        Some((src, dst, bytes))
    }
}

/// Enqueues the copies of a batch, by as few driver calls as possible.
///
/// # Errors
/// The driver's. Some copies may be in flight then, as `in_flight` says.
///
/// # Safety
/// * As for [`DriverCalls::make`](super::driver_calls::DriverCalls::make).
pub(crate) unsafe fn copy_batch(
    pairs: &[(RawBuffer, RawBuffer)],
    call: BatchCall,
    stream: RawStream,
    in_flight: &mut bool,
) -> Result<(), DriverError> {
    let are_many = || Joined(pairs).nth(SINGLE_CALLS).is_some();
    if call != BatchCall::Absent && stream.addr() > LAST_DEFAULT_STREAM && are_many() {
        // SAFETY: the caller's promise.
        match unsafe { copy_many(pairs, call, stream, in_flight) } {
            // The copies may be possible one by one. Those that are in flight write the same bytes again.
            Err(error) if matches!(error.code(), Some(INVALID_VALUE | NOT_SUPPORTED)) => {}
            other => return other,
        }
    }
    for (src, dst, bytes) in Joined(pairs) {
        // SAFETY: the caller's promise.
        unsafe { copy_one(src, dst, bytes, stream, in_flight) }?;
    }
    Ok(())
}

/// # Safety
/// * As for [`copy_batch`]. `bytes` bytes from the beginnings of the buffers are ranges of the batch.
unsafe fn copy_one(
    src: &RawBuffer,
    dst: &RawBuffer,
    bytes: usize,
    stream: RawStream,
    in_flight: &mut bool,
) -> Result<(), DriverError> {
    // Both have one: it was checked.
    let (Ok(from), Ok(to)) = (driver_address(src), driver_address(dst)) else { return Ok(()) };
    // SAFETY: the caller's promise.
    unsafe { copy(from, to, bytes, stream, in_flight) }?;
    *in_flight = true;
    Ok(())
}

/// Like [`copy_batch`], by the driver's call for many copies. Pageable and unified memory is copied one by one: the host may have to
/// take part.
///
/// # Safety
/// * As for [`copy_batch`].
#[inline(never)]
unsafe fn copy_many(
    pairs: &[(RawBuffer, RawBuffer)],
    call: BatchCall,
    stream: RawStream,
    in_flight: &mut bool,
) -> Result<(), DriverError> {
    let mut list = List { sources: [0; MOST], destinations: [0; MOST], sizes: [0; MOST], count: 0 };
    for (src, dst, bytes) in Joined(pairs) {
        let Some((from, to)) = fixed_address(src).zip(fixed_address(dst)) else {
            // SAFETY: the caller's promise.
            unsafe { copy_one(src, dst, bytes, stream, in_flight) }?;
            continue;
        };
        if list.count == MOST {
            // SAFETY: the caller's promise.
            unsafe { list.enqueue(call, stream, in_flight) }?;
        }
        list.push(from, to, bytes);
    }
    // SAFETY: the caller's promise.
    unsafe { list.enqueue(call, stream, in_flight) }
}

/// Returns the address of memory that stays where it is.
fn fixed_address(buffer: &RawBuffer) -> Option<u64> {
    match buffer.place().kind {
        MemoryKind::Device => buffer.device_address(),
        MemoryKind::Pinned | MemoryKind::Mapped => {
            buffer.host_address().map(|address| address.as_ptr().expose_provenance() as u64)
        }
        MemoryKind::Unified | MemoryKind::Pageable => None,
    }
}

/// Copies for one call.
struct List {
    sources: [u64; MOST],
    destinations: [u64; MOST],
    sizes: [usize; MOST],
    count: usize,
}

impl List {
    fn push(&mut self, from: u64, to: u64, bytes: usize) {
        let at = self.count;
        if let (Some(source), Some(destination), Some(size)) =
            (self.sources.get_mut(at), self.destinations.get_mut(at), self.sizes.get_mut(at))
        {
            (*source, *destination, *size) = (from, to, bytes);
            self.count += 1;
        }
    }

    /// Enqueues the copies, and removes them from the list.
    ///
    /// # Safety
    /// * As for [`copy_batch`]: the list has copies of the batch.
    unsafe fn enqueue(
        &mut self,
        call: BatchCall,
        stream: RawStream,
        in_flight: &mut bool,
    ) -> Result<(), DriverError> {
        /// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`.
        const STREAM_ORDER: u32 = 1;
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return Ok(());
        }
        let (to, from, sizes) =
            (self.destinations.as_mut_ptr(), self.sources.as_mut_ptr(), self.sizes.as_mut_ptr());
        // No hints: they are for unified and pageable memory.
        let nowhere = ffi::MemLocation { kind: 0, id: 0 };
        let mut attributes = ffi::MemcpyAttributes {
            src_access_order: STREAM_ORDER,
            src_location: nowhere,
            dst_location: nowhere,
            flags: 0,
        };
        let (mut first, mut failed) = (0, 0);
        let (attributes, first, failed) = (&raw mut attributes, &raw mut first, &raw mut failed);
        // SAFETY: the caller's promise; the driver reads the arrays, which have `count` elements and one, during the call.
        let enqueued = unsafe {
            if call == BatchCall::Current {
                let code = ffi::cuMemcpyBatchAsync_v2(to, from, sizes, count, attributes, first, 1, stream);
                check("cuMemcpyBatchAsync_v2", code)
            } else {
                let code =
                    ffi::cuMemcpyBatchAsync(to, from, sizes, count, attributes, first, 1, failed, stream);
                check("cuMemcpyBatchAsync", code)
            }
        };
        // Also after an error: the driver does not say that it enqueues all or none.
        *in_flight = !transload_core::mutant!("streams/batches-under-way");
        enqueued
    }
}
