//! A set of bytes, stored as ranges.

use std::ops::Range;

use smallvec::SmallVec;
use transload_core::RawBuffer;

/// Sorted, disjoint and non-adjacent ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(SmallVec<[Range<usize>; 2]>);

/// Returns the byte range of a buffer within its allocation.
pub(crate) fn bytes_of(buffer: &RawBuffer) -> Range<usize> {
    buffer.offset()..buffer.offset().saturating_add(buffer.len())
}

impl Ranges {
    pub(crate) fn insert(&mut self, mut range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // Merge overlapping and adjacent ranges.
        let from = self.0.partition_point(|other| other.end < range.start);
        let to = self.0.partition_point(|other| other.start <= range.end);
        for other in self.0.drain(from..to) {
            range = range.start.min(other.start)..range.end.max(other.end);
        }
        self.0.insert(from, range);
    }

    pub(crate) fn remove(&mut self, range: &Range<usize>) {
        let from = self.0.partition_point(|other| other.end <= range.start);
        let to = self.0.partition_point(|other| other.start < range.end);
        if from >= to || range.is_empty() {
            return;
        }
        let ends = self.0[from].start..self.0[to - 1].end;
        self.0.drain(from..to);
        let left = [ends.start..range.start, range.end..ends.end];
        self.0.insert_many(from, left.into_iter().filter(|left| !left.is_empty()));
    }

    /// Returns the parts of `range` that are not in the set.
    pub(crate) fn missing(&self, range: &Range<usize>) -> Self {
        let mut rest = Self::default();
        rest.insert(range.clone());
        let from = self.0.partition_point(|known| known.end <= range.start);
        self.0[from..]
            .iter()
            .take_while(|known| known.start < range.end)
            .for_each(|known| rest.remove(known));
        rest
    }

    pub(crate) fn covers(&self, range: &Range<usize>) -> bool {
        let at = self.0.partition_point(|known| known.end < range.end);
        range.is_empty() || self.0.get(at).is_some_and(|known| known.start <= range.start)
    }

    /// Returns the number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl IntoIterator for Ranges {
    type Item = Range<usize>;
    type IntoIter = smallvec::IntoIter<[Range<usize>; 2]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
#[path = "../tests/unit/ranges.rs"]
mod tests;
