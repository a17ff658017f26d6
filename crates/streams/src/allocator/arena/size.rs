//! Sizes: what a request is rounded to, and how large the segments are that blocks are cut from.

use transload_core::{Error, ErrorKind, Result};

/// Every block begins at a multiple of this and is as long as some multiple of it.
pub(crate) const MIN_BLOCK_SIZE: u64 = 512;

/// Up to here a request is served from the segments for small blocks.
pub(crate) const SMALL: u64 = 1 << 20;

/// Segments for small blocks, and the least for large ones.
pub(crate) const SMALL_SEGMENT: u64 = 2 << 20;
pub(crate) const LARGE_SEGMENT: u64 = 20 << 20;

/// New large segments are an eighth of what there is already, up to this.
const GROWTH_UP_TO: u64 = 512 << 20;

/// What a request needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocParams {
    /// Rounded up.
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) small: bool,
    /// Whether a buffer will own the block.
    pub(crate) buffer: bool,
    /// The largest free block that it may be cut from while there is other memory.
    pub(crate) most: u64,
}

impl AllocParams {
    /// What `bytes` need, for a plain block or for a buffer.
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

    /// As it is, but not cut from a much larger block than `max_split`, or than itself if it is larger than that.
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
    /// How large the next segment for a request is, where `reserved` bytes are held already.
    pub(crate) fn next(self, want: AllocParams, reserved: u64) -> u64 {
        /// Up to here requests share segments also where those are to be exact.
        const SHARED: u64 = 64 << 10;
        const PAGE: u64 = 4096;
        if self.exact && want.size > SHARED {
            return want.size.checked_next_multiple_of(PAGE).unwrap_or(want.size);
        }
        let least = if want.small { self.small } else { self.large.max((reserved / 8).min(GROWTH_UP_TO)) };
        let needed = want.size.max(least);
        needed.checked_next_multiple_of(SMALL_SEGMENT.min(self.small)).unwrap_or(needed)
    }
}
