//! A fill as calls of the driver: its own memset for patterns of 1, 2 and 4 bytes, our kernel for those of 8 and 16 and for
//! memory of others that is not aligned to the pattern, and copies where the kernel cannot be.

use transload_core::{Pattern, Result};
use transload_cuda_sys::{DriverError, RawStream, check, ffi};

use crate::{kernels::Kernels, timeline::StreamTimeline};

/// One fill of memory that the device reaches.
#[derive(Clone, Copy)]
pub(crate) struct Fill<'a> {
    address: u64,
    bytes: usize,
    by: By<'a>,
}

#[derive(Clone, Copy)]
enum By<'a> {
    /// The driver's own.
    Memset(Pattern),
    /// Our kernel.
    Kernel(&'a Kernels, Pattern),
    /// The pattern once, by the driver's memset, and copies of what is there behind itself: slower, since they read as much
    /// as they write, and with nothing but what every driver has.
    Copies(Pattern),
}

impl<'a> Fill<'a> {
    /// What the stream does it with; the first wide pattern of a context has the kernels loaded.
    ///
    /// # Errors
    /// The driver's, but for a driver that does not take the kernels.
    pub(crate) fn new(
        address: u64,
        bytes: usize,
        pattern: Pattern,
        stream: &'a StreamTimeline,
    ) -> Result<Self> {
        // What others allocated may begin anywhere.
        let is_aligned = |pattern: Pattern| address.is_multiple_of(pattern.width() as u64);
        let by = match pattern {
            Pattern::U8(_) | Pattern::U16(_) | Pattern::U32(_) if is_aligned(pattern) => By::Memset(pattern),
            _ => match pattern.shortest() {
                short @ (Pattern::U8(_) | Pattern::U16(_) | Pattern::U32(_)) if is_aligned(short) => {
                    By::Memset(short)
                }
                _ if bytes == 0 => By::Copies(pattern),
                wide => {
                    stream.kernels_for_fills()?.map_or(By::Copies(wide), |kernels| By::Kernel(kernels, wide))
                }
            },
        };
        Ok(Self { address, bytes, by })
    }

    /// As [`new`](Self::new), but without a kernel: for work that may outlive the stream, in someone's graph.
    pub(crate) fn without_kernels(address: u64, bytes: usize, pattern: Pattern) -> Self {
        let by = match pattern.shortest() {
            short @ (Pattern::U8(_) | Pattern::U16(_) | Pattern::U32(_))
                if address.is_multiple_of(short.width() as u64) =>
            {
                By::Memset(short)
            }
            other => By::Copies(other),
        };
        Self { address, bytes, by }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_one_call(&self) -> bool {
        !matches!(self.by, By::Copies(_))
    }

    pub(crate) fn launches_a_kernel(&self) -> bool {
        matches!(self.by, By::Kernel(..))
    }

    /// # Safety
    /// * The address is valid for as many bytes on the device of `stream`, whose context is current and that of the stream it
    ///   was made for. The memory stays alive, and nothing else uses it in conflict, until the stream has done what is
    ///   enqueued here: also where it answers an error, if `under_way` says that something was enqueued.
    /// * The length is a multiple of the pattern's width.
    pub(crate) unsafe fn make(&self, stream: RawStream, under_way: &mut bool) -> Result<(), DriverError> {
        let Self { address, bytes, by } = *self;
        let made = match by {
            // SAFETY: the caller's promise.
            By::Memset(pattern) => unsafe { memset(address, bytes, pattern, stream) },
            // SAFETY: the caller's promise; the kernels are those of the stream's context.
            By::Kernel(kernels, pattern) => unsafe {
                kernels.fill(address, pattern.repeated(), bytes, stream)
            },
            // SAFETY: the caller's promise.
            By::Copies(pattern) => unsafe { by_copies(address, bytes, pattern, stream, under_way) },
        };
        *under_way |= made.is_ok();
        made
    }
}

/// # Safety
/// * As for [`Fill::make`].
unsafe fn memset(address: u64, bytes: usize, pattern: Pattern, stream: RawStream) -> Result<(), DriverError> {
    let [a, b, c, d, ..] = pattern.repeated();
    match pattern.width() {
        1 => {
            // SAFETY: the caller's promise.
            let code = unsafe { ffi::cuMemsetD8Async(address, a, bytes, stream) };
            check("cuMemsetD8Async", code)
        }
        2 => {
            // SAFETY: the caller's promise; the length is a multiple of the pattern's.
            let code =
                unsafe { ffi::cuMemsetD16Async(address, u16::from_ne_bytes([a, b]), bytes / 2, stream) };
            check("cuMemsetD16Async", code)
        }
        _ => {
            let word = u32::from_ne_bytes([a, b, c, d]);
            // SAFETY: as above.
            check("cuMemsetD32Async", unsafe { ffi::cuMemsetD32Async(address, word, bytes / 4, stream) })
        }
    }
}

/// # Safety
/// * As for [`Fill::make`].
unsafe fn by_copies(
    address: u64,
    bytes: usize,
    pattern: Pattern,
    stream: RawStream,
    under_way: &mut bool,
) -> Result<(), DriverError> {
    const WORD: usize = size_of::<u32>();
    let width = pattern.width().min(bytes);
    let repeated = pattern.repeated();
    let unit = if address.is_multiple_of(WORD as u64) && width.is_multiple_of(WORD) { WORD } else { 1 };
    for (at, part) in (0..width).step_by(unit).zip(repeated.chunks_exact(unit)) {
        let to = address + at as u64;
        match *part {
            [a, b, c, d] => {
                let word = u32::from_ne_bytes([a, b, c, d]);
                // SAFETY: the caller's promise; the word lies within the first pattern.
                check("cuMemsetD32Async", unsafe { ffi::cuMemsetD32Async(to, word, 1, stream) })?;
            }
            [byte, ..] => {
                // SAFETY: the caller's promise; the byte lies within the first pattern.
                check("cuMemsetD8Async", unsafe { ffi::cuMemsetD8Async(to, byte, 1, stream) })?;
            }
            [] => {}
        }
        *under_way = true;
    }
    let mut done = width;
    while done < bytes {
        let more = done.min(bytes - done);
        // SAFETY: the caller's promise; both ranges lie within the memory and do not overlap.
        check("cuMemcpyDtoDAsync_v2", unsafe {
            ffi::cuMemcpyDtoDAsync_v2(address + done as u64, address, more, stream)
        })?;
        done += more;
    }
    Ok(())
}
