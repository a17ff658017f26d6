//! The ranges of a list, apart by access, so that a search for a conflict ends at the first overlap.

use std::ops::Range;

use super::steps;
use crate::Access;

/// Ranges that a search checks one by one.
const NEAR: usize = 4;

/// Ranges of one allocation that an operation uses: disjoint, none empty, and in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ListRanges {
    read: Vec<Range<usize>>,
    written: Vec<Range<usize>>,
}

impl ListRanges {
    /// Copies ranges that are in order, without the empty ones.
    pub(super) fn new<'a>(ranges: impl Iterator<Item = (&'a Range<usize>, Access)> + Clone) -> Self {
        let of = |which| {
            let of_access =
                ranges.clone().filter(move |(range, access)| *access == which && !range.is_empty());
            of_access.map(|(range, _)| range.clone()).collect()
        };
        Self { read: of(Access::Read), written: of(Access::Write) }
    }

    /// Returns the number of ranges, and of those that are written.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.read.len() + self.written.len(), self.written.len())
    }

    /// Returns whether all are written.
    pub(super) fn are_written(&self) -> bool {
        self.read.is_empty()
    }

    /// Returns whether a range overlaps one of this access.
    pub(super) fn overlaps(&self, range: &Range<usize>, access: Access) -> bool {
        meets(&mut if access == Access::Write { &self.written } else { &self.read }, range)
    }

    /// Returns whether one of some uses, which are in order, conflicts with a range of the list.
    pub(super) fn conflict<'a>(&self, uses: impl IntoIterator<Item = (&'a Range<usize>, Access)>) -> bool {
        let (mut read, mut written) = (self.read.as_slice(), self.written.as_slice());
        uses.into_iter().any(|(range, access)| {
            let conflicts = |by: Access| access.conflicts_with(by);
            conflicts(Access::Write) && meets(&mut written, range)
                || conflicts(Access::Read) && meets(&mut read, range)
        })
    }
}

/// Returns whether a range overlaps one of a list, of which it removes those before the range.
fn meets(list: &mut &[Range<usize>], range: &Range<usize>) -> bool {
    steps::count();
    let before = |one: &Range<usize>| one.end <= range.start;
    let near = list.iter().take(NEAR).position(|one| !before(one));
    let skipped = near.unwrap_or_else(|| list.partition_point(before));
    *list = list.get(skipped..).unwrap_or_default();
    list.first().is_some_and(|one| one.start < range.end) && !range.is_empty()
}
