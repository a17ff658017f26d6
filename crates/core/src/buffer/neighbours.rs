//! Ranges of one allocation that lie next to each other.

use crate::RawBuffer;

impl RawBuffer {
    /// Returns a view of both ranges, if they are adjacent in one allocation; else `None`.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Option<Self> {
        let (ours, theirs) = (self.range(), other.range());
        let adjacent = ours.end == theirs.start || theirs.end == ours.start;
        (self.id() == other.id() && adjacent)
            .then(|| self.of_allocation(ours.start.min(theirs.start), ours.end.max(theirs.end)))
    }

    /// Returns the number of bytes between this range and `next`, if that begins in the same allocation where this one ends, or at most
    /// `most` bytes later; else `None`.
    #[must_use]
    #[inline]
    pub fn gap_to(&self, next: &Self, most: usize) -> Option<usize> {
        let gap = next.offset().checked_sub(self.range().end).filter(|gap| *gap <= most)?;
        (self.id() == next.id()).then_some(gap)
    }

    /// Returns a view from the first byte of this range to the last one of `next`, with the bytes between them, if that begins in the same
    /// allocation where this one ends, or later; else `None`.
    #[must_use]
    pub fn extended(&self, next: &Self) -> Option<Self> {
        self.gap_to(next, usize::MAX).map(|_| self.of_allocation(self.offset(), next.range().end))
    }
}
