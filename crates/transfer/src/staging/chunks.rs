//! Splits a transfer into chunks, and counts them.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use super::ring::CAPACITY;

/// The smallest chunk, in bytes, that is worth a task switch.
const SMALLEST: usize = 256 << 10;
/// Chunks of a transfer between devices, or with unified memory, that is not too short or long for it.
pub(crate) const EVEN: usize = 8;

/// Returns the size in bytes of `count` equal chunks. For transfers that the device begins at once, so that chunks can be larger.
pub(crate) fn even_chunk(bytes: usize, count: usize) -> usize {
    bounded(bytes.div_ceil(count.max(1)))
}

fn bounded(size: usize) -> usize {
    size.min(CAPACITY).next_multiple_of(64 << 10).clamp(SMALLEST, CAPACITY)
}

/// Returns the number of chunks of a transfer of one pair: by their number if they are even, or full staging buffers.
pub(crate) fn chunks_of(bytes: u64, even: Option<usize>) -> u32 {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let chunk = even.map_or(CAPACITY, |count| even_chunk(bytes, count));
    u32::try_from(bytes.div_ceil(chunk)).unwrap_or(u32::MAX)
}

/// The chunks of a transfer: taken in order, each once, and counted when finished.
#[derive(Debug)]
pub(crate) struct Chunks {
    bytes: usize,
    chunk: usize,
    count: u64,
    next: AtomicU64,
    /// Chunks not finished yet, taken or not.
    left: AtomicU64,
}

impl Chunks {
    pub(crate) fn new(bytes: usize, chunk: usize) -> Self {
        let count = bytes.div_ceil(chunk.max(1)) as u64;
        Self { bytes, chunk, count, next: AtomicU64::new(0), left: AtomicU64::new(count) }
    }

    /// Takes the next chunk, if any is left.
    pub(crate) fn take(&self) -> Option<Range<usize>> {
        if self.are_taken() {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::AcqRel);
        if number >= self.count {
            return None;
        }
        let start = usize::try_from(number).ok()? * self.chunk;
        Some(start..(start + self.chunk).min(self.bytes))
    }

    /// Returns whether all chunks were taken.
    pub(crate) fn are_taken(&self) -> bool {
        self.next.load(Ordering::Acquire) >= self.count
    }

    /// Returns the size of a chunk in bytes; the last one may be smaller.
    pub(crate) fn size(&self) -> usize {
        self.chunk
    }

    /// Returns the number of chunks left to take.
    pub(crate) fn left_to_take(&self) -> usize {
        usize::try_from(self.count.saturating_sub(self.next.load(Ordering::Acquire))).unwrap_or(usize::MAX)
    }

    /// Counts a taken chunk as finished. Returns whether it was the last one.
    #[must_use]
    pub(crate) fn finish(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Cancels the chunks not taken yet. The caller holds a taken chunk, so the last one is still to be finished.
    pub(crate) fn cancel(&self) {
        let taken = self.next.swap(self.count, Ordering::AcqRel).min(self.count);
        self.left.fetch_sub(self.count - taken, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_all_bytes_and_last_is_reported() {
        for (bytes, chunk) in [(1, 4), (4, 4), (5, 4), (1000, 64), (1024, 64)] {
            let chunks = Chunks::new(bytes, chunk);
            let mut covered = 0;
            while let Some(piece) = chunks.take() {
                assert_eq!(piece.start, covered);
                covered = piece.end;
                assert_eq!(chunks.finish(), covered == bytes);
            }
            assert_eq!(covered, bytes);
        }
    }

    #[test]
    fn cancel_leaves_taken_chunks_to_finish() {
        let chunks = Chunks::new(100, 10);
        let (first, second) = (chunks.take(), chunks.take());
        assert!(first.is_some() && second.is_some());
        chunks.cancel();
        assert_eq!(chunks.take(), None);
        chunks.cancel();
        assert!(!chunks.finish());
        assert!(chunks.finish());
    }

    #[test]
    fn chunk_size_grows_with_the_transfer_within_its_bounds() {
        let even = |bytes| even_chunk(bytes, EVEN);
        assert_eq!([1, 1 << 30, usize::MAX].map(even), [SMALLEST, CAPACITY, CAPACITY]);
        assert_eq!([1 << 20, 16 << 20, 64 << 20].map(even), [1 << 18, 2 << 20, 4 << 20]);
    }
}
