//! Rounding of requests, and sizes of segments.

use transload_core::{Error, ErrorKind, Result};

/// Alignment and size granularity of blocks.
pub(crate) const MIN_BLOCK_SIZE: u64 = 512;

/// Requests up to this size use small segments.
pub(crate) const SMALL: u64 = 1 << 20;

/// Size of small segments, and minimum size of large ones.
pub(crate) const SMALL_SEGMENT: u64 = 2 << 20;
pub(crate) const LARGE_SEGMENT: u64 = 20 << 20;

/// Large segments grow to an eighth of the reserved memory, up to this.
const GROWTH_UP_TO: u64 = 512 << 20;

/// Parameters of an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocParams {
    /// Rounded up.
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) small: bool,
    /// Whether a buffer will own the block.
    pub(crate) buffer: bool,
    /// Largest free block to split while other memory is available.
    pub(crate) most: u64,
}

impl AllocParams {
    /// Returns the parameters for `bytes`, for a plain block or a buffer.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes and for more than an address space has.
    #[inline]
    pub(crate) fn new(bytes: usize, buffer: bool) -> Result<Self> {
        let requested = bytes as u64;
        if requested.wrapping_sub(1) >= i64::MAX as u64 - MIN_BLOCK_SIZE {
            return Err(impossible(bytes));
        }
        let size = (requested + (MIN_BLOCK_SIZE - 1)) & !(MIN_BLOCK_SIZE - 1);
        Ok(Self { size, requested, small: size <= SMALL, buffer, most: u64::MAX })
    }

    /// Bounds the blocks to split: `max_split`, or twice the size for larger requests.
    #[inline]
    pub(crate) fn within(self, max_split: u64) -> Self {
        let most = if self.size <= max_split { max_split } else { self.size.saturating_mul(2) };
        Self { most, ..self }
    }
}

#[cold]
fn impossible(bytes: usize) -> Error {
    let text = format!(
        "an allocation of {bytes} bytes is impossible; valid are 1 to {} bytes",
        i64::MAX as u64 - MIN_BLOCK_SIZE
    );
    Error::new(ErrorKind::InvalidArgument, text)
}

/// Sizes of new segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentSizes {
    pub(crate) small: u64,
    pub(crate) large: u64,
    /// Whether a segment is no larger than the request, unless that is very small.
    pub(crate) exact: bool,
}

impl SegmentSizes {
    /// Returns the size of the next segment, given the `reserved` bytes.
    pub(crate) fn next(self, params: AllocParams, reserved: u64) -> u64 {
        /// Requests up to this share segments even with exact segments.
        const SHARED: u64 = 64 << 10;
        const PAGE: u64 = 4096;
        if self.exact && params.size > SHARED {
            return params.size.checked_next_multiple_of(PAGE).unwrap_or(params.size);
        }
        let least = if params.small { self.small } else { self.large.max((reserved / 8).min(GROWTH_UP_TO)) };
        let needed = params.size.max(least);
        needed.checked_next_multiple_of(SMALL_SEGMENT.min(self.small)).unwrap_or(needed)
    }
}
