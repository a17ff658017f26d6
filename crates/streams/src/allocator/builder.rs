//! How an allocator is to behave, said before there is one.

use transload_core::{Error, ErrorKind, Result};
use transload_memory::MemoryResource;

use super::{
    StreamOrderedAllocator,
    arena::size::{LARGE_SEGMENT, MIN_BLOCK_SIZE, SMALL_SEGMENT, SegmentSizes},
};

/// What [`AllocatorBuilder::ahead`] is by default.
const AHEAD: u64 = 128 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) limit: u64,
    pub(super) segments: SegmentSizes,
    pub(super) ahead: u64,
    pub(super) max_split: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limit: u64::MAX,
            segments: SegmentSizes { small: SMALL_SEGMENT, large: LARGE_SEGMENT, exact: false },
            ahead: AHEAD,
            max_split: u64::MAX,
        }
    }
}

/// Makes a [`StreamOrderedAllocator`].
#[derive(Debug)]
#[must_use = "nothing is made before `build`"]
pub struct AllocatorBuilder<R> {
    upstream: R,
    options: Options,
}

impl<R: MemoryResource> AllocatorBuilder<R> {
    pub(super) fn new(upstream: R) -> Self {
        Self { upstream, options: Options::default() }
    }

    /// Never holds more than so many bytes of the upstream resource. By default there is no limit but the resource's own.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.options.limit = bytes;
        self
    }

    /// Bytes of a segment for requests of up to 1 MiB (2 MiB by default), and the least for larger ones (20 MiB).
    pub fn segments(mut self, small: u64, large: u64) -> Self {
        self.options.segments = SegmentSizes { small, large, ..self.options.segments };
        self
    }

    /// Takes segments of just the size of requests above 64 KiB, rounded up to 4 KiB: for memory that is dear to hold, such as
    /// pinned host memory. The first requests of a size cost a segment each; what is freed is kept and split as ever.
    pub fn exact_segments(mut self) -> Self {
        self.options.segments.exact = true;
        self
    }

    /// Cuts requests of up to `bytes` only from free blocks of up to `bytes`, and larger ones from blocks of at most twice their
    /// size, as long as there is other memory: so small buffers do not keep large segments. No bound by default.
    pub fn max_split(mut self, bytes: u64) -> Self {
        self.options.max_split = bytes;
        self
    }

    /// How far the host may run ahead of a stream, in bytes (128 MiB by default); of pinned and mapped memory only.
    ///
    /// A buffer of such memory is written by the host, which waits for whatever still uses the bytes. So a request for one is
    /// given memory that nothing in flight uses, new memory if need be, as long as what of the stream is free but in flight
    /// makes at most so many bytes together with the request. Beyond that, or where no more memory is to be had, it gets the
    /// block that is over first. So for each stream at most so many bytes are held that would not be without; 0 gives every
    /// request what was freed last, as for device memory. Plain blocks are always given so.
    pub fn ahead(mut self, bytes: u64) -> Self {
        self.options.ahead = bytes;
        self
    }

    /// Makes it. Nothing is allocated yet.
    ///
    /// # Errors
    /// `InvalidArgument` for segments of 0 bytes or of no whole number of 512 bytes.
    pub fn build(self) -> Result<StreamOrderedAllocator> {
        let SegmentSizes { small, large, .. } = self.options.segments;
        if [small, large].iter().any(|size| *size == 0 || !size.is_multiple_of(MIN_BLOCK_SIZE)) {
            let text = format!(
                "segments of {small} and {large} bytes; valid are multiples of {MIN_BLOCK_SIZE} bytes, at least one of it"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(StreamOrderedAllocator::over(Box::new(self.upstream), self.options))
    }
}
