//! The uses of an allocation by disjoint ranges, ordered by address: a short list, or a tree if there are many.

use std::{collections::BTreeMap, ops::Range};

use smallvec::SmallVec;

use crate::{Access, Fence};

/// How many segments are kept as a list. One of them is inline, with two uses.
pub(super) const FEW: usize = 16;

/// A use that was enqueued. It is complete when the fence is.
#[derive(Clone, Debug)]
pub(super) struct Use {
    pub(super) fence: Fence,
    /// Number of the claim that it was made by.
    pub(super) claim: u32,
    pub(super) access: Access,
    pub(super) kind: Kind,
}

/// What the end of a use means for the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing: it can fail only with its device.
    Sure,
    /// It can fail by itself.
    Failing,
    /// Nothing: it is work on an earlier allocation of the memory.
    Earlier,
    /// It has failed, and this is what stays.
    Mark,
}

impl Use {
    pub(super) fn new(fence: &Fence, claim: u32, access: Access) -> Self {
        let can_fail = fence.sources().is_some() || fence.timeline().can_fail();
        let kind = if can_fail { Kind::Failing } else { Kind::Sure };
        Self { fence: fence.clone(), claim, access, kind }
    }

    pub(super) fn is_mark(&self) -> bool {
        self.kind == Kind::Mark
    }

    /// Returns whether the bytes are as they should only if it succeeds.
    #[inline]
    pub(super) fn may_damage(&self) -> bool {
        self.access == Access::Write && self.kind == Kind::Failing
    }

    pub(super) fn written(&self, range: Range<usize>) -> Written {
        Written { range, fence: self.fence.clone(), claim: self.claim }
    }

    /// Returns whether nothing needs to be known of it any more.
    pub(super) fn is_forgettable(&self) -> bool {
        self.kind != Kind::Mark && !self.may_damage() && self.fence.is_known_done()
    }

    fn is_same_as(&self, other: &Self) -> bool {
        (self.access, self.kind) == (other.access, other.kind)
            && self.fence.point() == other.fence.point()
            && self.fence.is_of_timeline(other.fence.timeline())
    }
}

/// A range whose bytes all have the same uses: most often at most one write, and the reads after it, one for each timeline.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) uses: SmallVec<[Use; 2]>,
}

impl Segment {
    /// Returns whether it has this use and no other.
    pub(super) fn has_only(&self, used: &Use) -> bool {
        matches!(self.uses.as_slice(), [only] if only.is_same_as(used))
    }

    /// Returns whether both have the same uses, so that they may become one segment.
    fn has_uses_of(&self, other: &Self) -> bool {
        self.uses.len() == other.uses.len()
            && self.uses.iter().zip(&other.uses).all(|(one, other)| one.is_same_as(other))
    }
}

/// What is left to do once the lock is released.
#[derive(Debug, Default)]
pub(super) struct Removed {
    /// Fences to be dropped: one may be the last handle of its stream.
    fences: SmallVec<[Fence; 8]>,
    /// Writes that are complete and may have failed, to be asked.
    pub(super) unsettled: Writes,
}

/// Writes that can fail. Inline up to two.
pub(super) type Writes = SmallVec<[Written; 2]>;

/// A write that can fail, and the bytes in question.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) range: Range<usize>,
    pub(super) fence: Fence,
    pub(super) claim: u32,
}

impl Removed {
    pub(super) fn push(&mut self, fence: Fence) {
        self.fences.push(fence);
    }

    pub(super) fn extend(&mut self, fences: impl IntoIterator<Item = Fence>) {
        self.fences.extend(fences);
    }
}

/// Disjoint segments, none of them empty.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Segments {
    /// All segments, sorted, unless they are in the tree.
    few: SmallVec<[Segment; 1]>,
    /// All segments by their start, once there were more than [`FEW`] and until there are none.
    tree: BTreeMap<usize, Segment>,
}

impl Segments {
    /// Returns the segments if they are in a list.
    #[inline]
    pub(super) fn listed(&self) -> Option<&[Segment]> {
        if self.tree.is_empty() { Some(&self.few) } else { None }
    }

    /// Returns the segment if it is the only one, and in the list.
    #[inline]
    pub(super) fn single_mut(&mut self) -> Option<&mut Segment> {
        match self.few.as_mut_slice() {
            [single] => Some(single),
            _ => None,
        }
    }

    /// Returns the segments that start at `from` or later, in order.
    pub(super) fn iter_from(&self, from: usize) -> impl Iterator<Item = &Segment> {
        let in_list = self.few.partition_point(|segment| segment.start < from);
        let few = self.few.get(in_list..).unwrap_or_default().iter();
        few.chain(self.tree.range(from..).map(|(_, segment)| segment)).inspect(|_| steps::count())
    }

    /// Returns the segments that overlap the range, from the last to the first: that takes one search in a tree.
    pub(super) fn overlapping(&self, range: &Range<usize>) -> impl Iterator<Item = &Segment> {
        let Range { start, end } = *range;
        // An empty range has no byte in common with any.
        let end = if start < end { end } else { 0 };
        let in_list = self.few.partition_point(|segment| segment.start < end);
        let few = self.few.get(..in_list).unwrap_or_default().iter().rev();
        let tree = self.tree.range(..end).rev().map(|(_, segment)| segment);
        let all = few.chain(tree).inspect(|_| steps::count());
        all.take_while(move |segment| segment.end > start)
    }

    /// Returns the last segment that starts before `end`.
    #[inline]
    pub(super) fn last_before_mut(&mut self, end: usize) -> Option<&mut Segment> {
        steps::count();
        if self.tree.is_empty() {
            return self.few.iter_mut().rev().find(|segment| segment.start < end);
        }
        self.tree.range_mut(..end).next_back().map(|(_, segment)| segment)
    }

    /// Returns the segment that starts at `start`.
    pub(super) fn get_mut(&mut self, start: usize) -> Option<&mut Segment> {
        steps::count();
        if self.tree.is_empty() {
            let index = self.few.binary_search_by_key(&start, |segment| segment.start).ok()?;
            return self.few.get_mut(index);
        }
        self.tree.get_mut(&start)
    }

    /// Adds a segment that overlaps none.
    pub(super) fn insert(&mut self, segment: Segment) {
        steps::count();
        if self.tree.is_empty() && self.few.len() < FEW {
            let index = self.few.partition_point(|known| known.start < segment.start);
            self.few.insert(index, segment);
        } else {
            self.tree.extend(self.few.drain(..).chain([segment]).map(|segment| (segment.start, segment)));
        }
    }

    pub(super) fn remove(&mut self, start: usize) -> Option<Segment> {
        steps::count();
        if self.tree.is_empty() {
            let index = self.few.binary_search_by_key(&start, |segment| segment.start).ok()?;
            return Some(self.few.remove(index));
        }
        self.tree.remove(&start)
    }

    /// Cuts a segment that has bytes on both sides of `at`.
    pub(super) fn split(&mut self, at: usize) {
        if let Some(left) = self.last_before_mut(at).filter(|left| left.end > at) {
            let right = Segment { start: at, end: left.end, uses: left.uses.clone() };
            left.end = at;
            self.insert(right);
        }
    }

    /// Joins the segments that meet at `at`, if they have the same uses: then they belong to the same fences.
    pub(super) fn join(&mut self, at: usize, removed: &mut Removed) {
        let bytes = at.saturating_sub(1)..at.saturating_add(1);
        let mut around = self.overlapping(&bytes);
        let (Some(right), Some(left)) = (around.next(), around.next()) else { return };
        if left.has_uses_of(right) {
            let (start, end) = (left.start, right.end);
            drop(around);
            if let Some(right) = self.remove(at) {
                removed.extend(right.uses.into_iter().map(|used| used.fence));
            }
            if let Some(left) = self.get_mut(start) {
                left.end = end;
            }
        }
    }
}

/// Counts the segments looked at, for tests of how the cost grows.
pub(super) mod steps {
    #[cfg(test)]
    thread_local!(static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });

    #[inline]
    pub(in super::super) fn count() {
        #[cfg(test)]
        STEPS.with(|steps| steps.set(steps.get() + 1));
    }

    /// Returns the count of the calling thread so far.
    #[cfg(test)]
    pub(crate) fn counted() -> u64 {
        STEPS.with(std::cell::Cell::get)
    }
}
