//! Where the bytes of a strided view are in a buffer.

use smallvec::SmallVec;

/// Runs of bytes at regular distances in a buffer, in any number of dimensions. It is checked when it is used.
///
/// ```
/// use transload_transfer::StridedLayout;
///
/// // Columns 8 to 15 of 100 rows of 64 floats.
/// let columns = StridedLayout::new(8 * 4).at(8 * 4).repeat(100, 64 * 4);
/// // The same of 16 such matrices that follow each other.
/// let of_all = columns.repeat(16, 100 * 64 * 4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedLayout {
    pub(super) offset: usize,
    pub(super) run: usize,
    /// Count and stride of each dimension, the innermost first.
    pub(super) dimensions: SmallVec<[(usize, usize); 4]>,
}

impl StridedLayout {
    /// One run of `bytes`, at the buffer's beginning.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self { offset: 0, run: bytes, dimensions: SmallVec::new() }
    }

    /// Sets where the first run begins, in bytes.
    #[must_use]
    pub fn at(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Repeats all of it `count` times, each `stride` bytes after the one before.
    #[must_use]
    pub fn repeat(mut self, count: usize, stride: usize) -> Self {
        self.dimensions.push((count, stride));
        self
    }

    /// Returns whether it has no bytes.
    pub(super) fn is_empty(&self) -> bool {
        self.run == 0 || self.dimensions.iter().any(|(count, _)| *count == 0)
    }

    /// Returns the bytes from the beginning of the first run to the end of the last; `None` if no memory has as many.
    pub(super) fn span(&self) -> Option<usize> {
        self.dimensions.iter().try_fold(self.run, |span, (count, stride)| {
            count.checked_sub(1)?.checked_mul(*stride)?.checked_add(span)
        })
    }

    /// Returns its shape for messages: the number of runs along each dimension, the outermost first, and their bytes.
    pub(super) fn shape(&self) -> String {
        let mut shape: String =
            self.dimensions.iter().rev().map(|(count, _)| format!("{count} × ")).collect();
        shape.push_str(&format!("{} bytes", self.run));
        shape
    }
}
