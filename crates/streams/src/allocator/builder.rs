//! Configures an allocator.

use transload_core::{Error, ErrorKind, Result};
use transload_memory::MemoryResource;

use super::{
    StreamOrderedAllocator,
    arena::size::{LARGE_SEGMENT, MIN_BLOCK_SIZE, SMALL_SEGMENT, SegmentSizes},
};

/// Default of [`AllocatorBuilder::run_ahead_limit`].
const RUN_AHEAD_LIMIT: u64 = 128 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) limit: u64,
    pub(super) segments: SegmentSizes,
    pub(super) run_ahead_limit: u64,
    pub(super) max_split: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limit: u64::MAX,
            segments: SegmentSizes { small: SMALL_SEGMENT, large: LARGE_SEGMENT, exact: false },
            run_ahead_limit: RUN_AHEAD_LIMIT,
            max_split: u64::MAX,
        }
    }
}

/// Builds a [`StreamOrderedAllocator`].
#[derive(Debug)]
#[must_use = "`build` creates the allocator"]
pub struct AllocatorBuilder<R> {
    upstream: R,
    options: Options,
}

impl<R: MemoryResource> AllocatorBuilder<R> {
    pub(super) fn new(upstream: R) -> Self {
        Self { upstream, options: Options::default() }
    }

    /// Limits the bytes reserved from the upstream resource. Default: no limit but the resource's own.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.options.limit = bytes;
        self
    }

    /// Sets the segment size for requests of up to 1 MiB (default 2 MiB), and the minimum for larger ones (default 20
    /// MiB), in bytes.
    pub fn segments(mut self, small: u64, large: u64) -> Self {
        self.options.segments = SegmentSizes { small, large, ..self.options.segments };
        self
    }

    /// Reserves segments of exactly the requested size for requests above 64 KiB, rounded up to 4 KiB: for expensive
    /// memory such as pinned host memory. Freed segments are reused and split as usual.
    pub fn exact_segments(mut self) -> Self {
        self.options.segments.exact = true;
        self
    }

    /// Splits only blocks of up to `bytes` for requests of up to `bytes`, and blocks of at most twice their size for
    /// larger ones, while other memory is available: so small buffers do not occupy large segments. Default: no
    /// bound.
    pub fn max_split(mut self, bytes: u64) -> Self {
        self.options.max_split = bytes;
        self
    }

    /// Sets how far the host may run ahead of a stream, in bytes (default 128 MiB). Only for pinned and mapped
    /// memory.
    ///
    /// The host writes such a buffer and would wait for earlier work on its bytes. So a request gets memory without
    /// work in flight, new memory if needed, as long as the stream's freed memory in flight is within this limit;
    /// beyond it, the block that completes first. 0 always reuses the most recently freed memory, as for device
    /// memory. Plain blocks are always reused so.
    pub fn run_ahead_limit(mut self, bytes: u64) -> Self {
        self.options.run_ahead_limit = bytes;
        self
    }

    /// Creates the allocator. Allocates no memory yet.
    ///
    /// # Errors
    /// `InvalidArgument` for segment sizes that are 0 or no multiple of 512 bytes.
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
