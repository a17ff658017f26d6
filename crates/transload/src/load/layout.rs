//! The layout of tensors in memory, and the chunks in which they are transferred.

use super::header::Entry;

/// Ranges of all tensors in one or more segments.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The tensors' ranges, in the file's order.
    pub(super) ranges: Vec<TensorRange>,
    /// Lengths of the segments in bytes; each at least 1.
    pub(super) segments: Vec<usize>,
}

/// The range of a tensor in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorRange {
    pub(super) segment: usize,
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

/// A piece of one segment, and the parts of tensors in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) segment: usize,
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) parts: Vec<Part>,
}

/// Bytes of one tensor within a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) tensor: usize,
    /// Offset in the chunk.
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Chunk {
    /// Returns the bytes of tensors, without gaps. They are contiguous in the file.
    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len as u64).sum()
    }
}

impl Layout {
    /// Lays tensors out at multiples of `alignment`, in segments of at most `most` bytes or one tensor. Returns `None`
    /// if the sum exceeds the address space.
    pub(super) fn new(tensors: &[Entry], alignment: usize, most: usize) -> Option<Self> {
        let mut ranges = Vec::with_capacity(tensors.len());
        let mut segments = vec![0_usize];
        for tensor in tensors {
            let end = segments.last().copied()?;
            let mut offset = end.checked_next_multiple_of(alignment)?;
            if end > 0 && offset.checked_add(tensor.bytes)? > most {
                segments.push(0);
                offset = 0;
            }
            let segment = segments.len() - 1;
            *segments.last_mut()? = offset.checked_add(tensor.bytes)?;
            ranges.push(TensorRange { segment, offset, bytes: tensor.bytes });
        }
        for segment in &mut segments {
            *segment = (*segment).max(1);
        }
        let total = segments.iter().try_fold(0_usize, |sum, len| sum.checked_add(*len))?;
        isize::try_from(total).ok().map(|_| Self { ranges, segments })
    }

    /// Returns the bytes of all segments.
    pub(super) fn bytes(&self) -> usize {
        self.segments.iter().sum()
    }

    /// Returns the bytes of the longest segment.
    pub(super) fn longest(&self) -> usize {
        self.segments.iter().copied().max().unwrap_or(1)
    }

    /// Returns chunks of at most `most` bytes that cover all tensors, in the file's order.
    pub(super) fn chunks(&self, most: usize) -> impl Iterator<Item = Chunk> {
        let mut cursor = Cursor::default();
        std::iter::from_fn(move || cursor.next(self, most))
    }
}

/// Position between two chunks of a layout. Each chunk begins and ends with bytes of a tensor, so none consists of gaps.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// The next tensor, and how many of its bytes are in earlier chunks.
    tensor: usize,
    done: usize,
}

impl Cursor {
    /// Returns the next chunk, of at most `most` bytes (at least 1).
    pub(super) fn next(&mut self, layout: &Layout, most: usize) -> Option<Chunk> {
        let most = most.max(1);
        let mut chunk: Option<Chunk> = None;
        while let Some(range) = layout.ranges.get(self.tensor) {
            let left = range.bytes - self.done;
            if left == 0 {
                (self.tensor, self.done) = (self.tensor + 1, 0);
                continue;
            }
            let offset = range.offset + self.done;
            let chunk = chunk.get_or_insert_with(|| Chunk {
                segment: range.segment,
                offset,
                len: 0,
                parts: Vec::new(),
            });
            let at = match offset.checked_sub(chunk.offset) {
                Some(at) if at < most && range.segment == chunk.segment => at,
                _ => break,
            };
            let len = left.min(most - at);
            chunk.parts.push(Part { tensor: self.tensor, at, len });
            chunk.len = at + len;
            self.done += len;
        }
        chunk
    }
}

#[cfg(test)]
#[path = "../../tests/unit/layout.rs"]
mod tests;
