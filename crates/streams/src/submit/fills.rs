//! Fills: driver memset for patterns of 1, 2 and 4 bytes, this crate's kernel for 8 and 16 bytes and unaligned
//! memory, and copies if the kernel is unavailable.

use transload_core::{Pattern, Result};
use transload_cuda_sys::{DriverError, RawStream, check, ffi};

use super::kernels::Kernels;

/// A fill of device-accessible memory.
#[derive(Clone, Copy)]
pub(crate) struct Fill<'a> {
    address: u64,
    bytes: usize,
    by: FillMethod<'a>,
}

#[derive(Clone, Copy)]
enum FillMethod<'a> {
    /// The driver's memset.
    Memset(Pattern),
    /// This crate's kernel.
    Kernel(&'a Kernels, Pattern),
    /// The pattern once, by memset, then copies of the filled part: slower, since it also reads, but always
    /// available.
    Copies(Pattern),
}

impl<'a> Fill<'a> {
    /// Chooses the method. `kernels` is called only if memset does not support the pattern; without kernels the fill
    /// uses copies.
    ///
    /// # Errors
    /// Those of `kernels`.
    pub(crate) fn new(
        address: u64,
        bytes: usize,
        pattern: Pattern,
        kernels: impl FnOnce() -> Result<Option<&'a Kernels>>,
    ) -> Result<Self> {
        let short = pattern.shortest();
        let by = match memset(pattern, address).or_else(|| memset(short, address)) {
            Some(by) => by,
            None if bytes == 0 => FillMethod::Copies(short),
            None => {
                kernels()?.map_or(FillMethod::Copies(short), |kernels| FillMethod::Kernel(kernels, short))
            }
        };
        Ok(Self { address, bytes, by })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_one_call(&self) -> bool {
        !matches!(self.by, FillMethod::Copies(_))
    }

    pub(crate) fn launches_a_kernel(&self) -> bool {
        matches!(self.by, FillMethod::Kernel(..))
    }

    /// # Safety
    /// * The range is valid on the device of `stream`, whose context is current and that of the stream in [`new`](Self::new).
    ///   The memory stays alive and has no conflicting use until the enqueued work is complete; also after an error, if
    ///   `in_flight` is true.
    /// * The length is a multiple of the pattern's width.
    pub(crate) unsafe fn make(&self, stream: RawStream, in_flight: &mut bool) -> Result<(), DriverError> {
        let Self { address, bytes, by } = *self;
        let made = match by {
            // SAFETY: the caller's promise.
            FillMethod::Memset(pattern) => unsafe { enqueue_memset(address, bytes, pattern, stream) },
            // SAFETY: the caller's promise; the kernels are those of the stream's context.
            FillMethod::Kernel(kernels, pattern) => unsafe {
                kernels.fill(address, pattern.repeated(), bytes, stream)
            },
            // SAFETY: the caller's promise.
            FillMethod::Copies(pattern) => unsafe { by_copies(address, bytes, pattern, stream, in_flight) },
        };
        *in_flight |= made.is_ok();
        made
    }
}

/// Returns memset if it supports the pattern at this alignment.
fn memset(pattern: Pattern, address: u64) -> Option<FillMethod<'static>> {
    let has = matches!(pattern, Pattern::U8(_) | Pattern::U16(_) | Pattern::U32(_));
    (has && address.is_multiple_of(pattern.width() as u64)).then_some(FillMethod::Memset(pattern))
}

/// # Safety
/// * As for [`Fill::make`].
unsafe fn enqueue_memset(
    address: u64,
    bytes: usize,
    pattern: Pattern,
    stream: RawStream,
) -> Result<(), DriverError> {
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
    in_flight: &mut bool,
) -> Result<(), DriverError> {
    let width = pattern.width().min(bytes);
    let repeated = pattern.repeated();
    // By words, where the driver takes the address for those.
    let step = if address.is_multiple_of(4) && width.is_multiple_of(4) { 4 } else { 1 };
    for (at, part) in (0..width).step_by(step).zip(repeated.chunks(step)) {
        let piece = Pattern::from_bytes(part).unwrap_or(pattern);
        // SAFETY: the caller's promise; the piece lies within the first pattern.
        unsafe { enqueue_memset(address + at as u64, step, piece, stream) }?;
        *in_flight = true;
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
