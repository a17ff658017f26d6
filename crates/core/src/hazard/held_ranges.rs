//! Ranges held without a fence: pending claims, host views and loans.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use super::{hold_kind::HoldKind, steps};
use crate::Access;

/// Up to this many other entries are kept as a list.
const MAX_LIST: usize = 8;

/// Entries for which an empty run keeps its memory.
const MAX_KEPT: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldRange {
    pub(super) range: Range<usize>,
    pub(super) access: Access,
    pub(super) kind: HoldKind,
}

/// What conflicts with a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    None,
    /// Another thread is between claim and commit.
    Pending,
    /// A view or a loan.
    Open(HoldKind, Access),
}

/// All held ranges.
#[derive(Debug, Default)]
pub(super) struct HeldRanges {
    /// The only entry, in the common case.
    one: Option<HeldRange>,
    others: Option<Box<Others>>,
}

/// The other entries: a run, and a short list, or counts by range if there are many.
#[derive(Debug, Default)]
struct Others {
    /// Disjoint and in order: those that began after the end of all others here, as a batch's do, which is released from the
    /// front. One that is released in the middle stays, as an empty range.
    run: VecDeque<HeldRange>,
    /// Number of released entries in the run; the first and the last are held.
    released: usize,
    list: Vec<HeldRange>,
    by_start: CountsByStart,
}

/// Counts by the start of the range that they apply to, which ends where the next one starts. Entries of
/// equal range, access and kind are not distinguished.
type CountsByStart = BTreeMap<usize, Counts>;

/// The number of entries by kind and access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts([u32; 6]);

const KINDS: [(HoldKind, Access); 6] = [
    (HoldKind::Pending, Access::Read),
    (HoldKind::Pending, Access::Write),
    (HoldKind::View, Access::Read),
    (HoldKind::View, Access::Write),
    (HoldKind::Loan, Access::Read),
    (HoldKind::Loan, Access::Write),
];

impl Counts {
    fn change(&mut self, held: &HeldRange, up: bool) {
        for (kind, count) in KINDS.iter().zip(&mut self.0) {
            if *kind == (held.kind, held.access) {
                *count = if up { count.saturating_add(1) } else { count.saturating_sub(1) };
            }
        }
    }

    fn kinds(&self) -> impl Iterator<Item = (HoldKind, Access)> {
        KINDS.into_iter().zip(self.0).filter(|(_, count)| *count > 0).map(|(kind, _)| kind)
    }
}

impl HeldRanges {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.one.is_none() && self.others.as_ref().is_none_or(|others| others.is_empty())
    }

    /// Returns whether no more than `count` entries are held. May return `false` if many are.
    pub(super) fn are_at_most(&self, count: usize) -> bool {
        let others = self.others.as_ref().map_or(Some(0), |others| others.listed());
        others.is_some_and(|others| usize::from(self.one.is_some()) + others <= count)
    }

    /// An empty range cannot conflict, so it is not stored.
    #[inline]
    pub(super) fn add(&mut self, range: &Range<usize>, access: Access, kind: HoldKind) {
        if self.one.is_some() {
            self.add_other(range, access, kind);
        } else if !range.is_empty() {
            self.one = Some(HeldRange { range: range.clone(), access, kind });
        }
    }

    #[inline(never)]
    fn add_other(&mut self, range: &Range<usize>, access: Access, kind: HoldKind) {
        if !range.is_empty() {
            self.others.get_or_insert_default().add(HeldRange { range: range.clone(), access, kind });
        }
    }

    #[inline]
    pub(super) fn release(&mut self, range: &Range<usize>, access: Access, kind: HoldKind) {
        match &self.one {
            Some(one) if (&one.range, one.access, one.kind) == (range, access, kind) => self.one = None,
            _ => self.release_other(range, access, kind),
        }
    }

    #[inline(never)]
    fn release_other(&mut self, range: &Range<usize>, access: Access, kind: HoldKind) {
        if let Some(others) = self.others.as_mut().filter(|_| !range.is_empty()) {
            others.release(&HeldRange { range: range.clone(), access, kind });
        }
    }

    /// Returns what conflicts with a use. Prefers a view or a loan to a claim, since those return `Busy`.
    #[inline]
    pub(super) fn conflict(&self, range: &Range<usize>, access: Access) -> Conflict {
        if self.is_empty() { Conflict::None } else { self.conflict_among(range, access) }
    }

    fn conflict_among(&self, range: &Range<usize>, access: Access) -> Conflict {
        let mut conflict = Conflict::None;
        for (kind, held) in self.overlapping(range) {
            match kind {
                _ if !access.conflicts_with(held) => {}
                HoldKind::View | HoldKind::Loan if crate::mutant!("core/view-excludes-work") => {}
                HoldKind::View | HoldKind::Loan => return Conflict::Open(kind, held),
                HoldKind::Pending => conflict = Conflict::Pending,
            }
        }
        conflict
    }

    /// Returns whether a thread is enqueueing work on a part of the range.
    pub(super) fn is_pending(&self, range: &Range<usize>) -> bool {
        self.overlapping(range).any(|(kind, _)| kind == HoldKind::Pending)
    }

    fn overlapping(&self, range: &Range<usize>) -> impl Iterator<Item = (HoldKind, Access)> {
        let Range { start, end } = *range;
        let others = self.others.as_deref().into_iter();
        let run = others.clone().flat_map(move |others| others.in_run(start..end));
        let list = self.one.iter().chain(others.clone().flat_map(|others| &others.list)).chain(run);
        let list = list.filter(move |held| overlaps(&held.range, &(start..end)));
        let by_start = others.flat_map(move |others| others.counts(start..end));
        list.map(|held| (held.kind, held.access)).chain(by_start)
    }
}

impl Others {
    fn is_empty(&self) -> bool {
        self.run.is_empty() && self.list.is_empty() && self.by_start.is_empty()
    }

    /// Returns the number of entries, unless some are only counted by range.
    fn listed(&self) -> Option<usize> {
        self.by_start.is_empty().then(|| self.run.len() - self.released + self.list.len())
    }

    fn add(&mut self, held: HeldRange) {
        if self.run.back().is_none_or(|last| last.range.end <= held.range.start) {
            self.run.push_back(held);
        } else if self.by_start.is_empty() && self.list.len() < MAX_LIST {
            self.list.push(held);
        } else {
            self.list.drain(..).chain([held]).for_each(|held| change(&mut self.by_start, &held, true));
        }
    }

    fn release(&mut self, held: &HeldRange) {
        let at = match self.run.front() {
            Some(first) if first == held => 0,
            _ => self.run.partition_point(|known| known.range.start < held.range.start),
        };
        if self.run.get(at) == Some(held) {
            match at {
                0 => drop(self.run.pop_front()),
                // Removing it would move others.
                _ => {
                    self.released += 1;
                    self.run.get_mut(at).into_iter().for_each(|held| held.range.end = held.range.start);
                }
            }
            self.drop_released();
            if self.run.is_empty() && self.run.capacity() > MAX_KEPT {
                self.run = VecDeque::new();
            }
        } else if !self.by_start.is_empty() {
            change(&mut self.by_start, held, false);
        } else if let Some(index) = self.list.iter().position(|known| known == held) {
            self.list.swap_remove(index);
        }
    }

    /// Removes the released entries at both ends of the run.
    fn drop_released(&mut self) {
        while self.released > 0 {
            steps::count();
            if self.run.front().is_some_and(|first| first.range.is_empty()) {
                self.run.pop_front();
            } else if self.run.back().is_some_and(|last| last.range.is_empty()) {
                self.run.pop_back();
            } else {
                break;
            }
            self.released -= 1;
        }
    }

    /// Returns the entries of the run that overlap a range or are next to it.
    fn in_run(&self, Range { start, end }: Range<usize>) -> impl Iterator<Item = &HeldRange> {
        let first = self.run.partition_point(|held| held.range.end <= start);
        let rest = self.run.range(first..).take_while(move |held| held.range.start < end);
        rest.inspect(|_| steps::count())
    }

    /// Returns the kinds of the counted entries that overlap a range.
    fn counts(&self, Range { start, end }: Range<usize>) -> impl Iterator<Item = (HoldKind, Access)> {
        let first = match self.by_start.range(..=start).next_back() {
            Some((at, _)) if start < end => *at,
            _ => start,
        };
        let stretches = self.by_start.range(first..end.max(first)).inspect(|_| steps::count());
        stretches.flat_map(|(_, counts)| counts.kinds())
    }
}

/// Adds or removes one entry in the counts of its range; neighbours with equal counts are merged.
fn change(by_start: &mut CountsByStart, held: &HeldRange, up: bool) {
    let Range { start, end } = held.range;
    for at in [start, end] {
        let before = by_start.range(..=at).next_back().map_or(Counts::default(), |(_, counts)| *counts);
        by_start.entry(at).or_insert(before);
    }
    for (_, counts) in by_start.range_mut(start..end) {
        steps::count();
        counts.change(held, up);
    }
    for at in [start, end] {
        let before = by_start.range(..at).next_back().map_or(Counts::default(), |(_, counts)| *counts);
        if by_start.get(&at) == Some(&before) {
            by_start.remove(&at);
        }
    }
}

/// Returns whether two ranges share a byte; an empty range overlaps none.
pub(super) fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}
