//! Ranges held without a fence: pending claims, host views and loans.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use super::{hold_kind::HoldKind, list_ranges::ListRanges, steps};
use crate::Access;

/// Up to this many other entries are kept as a list.
const MAX_LIST: usize = 8;

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

/// The other entries, counted by range if there are many, and the lists of ranges.
#[derive(Debug, Default)]
struct Others {
    few: Vec<HeldRange>,
    by_start: CountsByStart,
    lists: Vec<HeldList>,
}

/// The ranges of a list that is being claimed, or was claimed and is not committed yet.
#[derive(Debug)]
pub(super) struct HeldList {
    /// Number of its claim.
    pub(super) claim: u32,
    pub(super) ranges: Arc<ListRanges>,
    /// Those before this byte are held.
    pub(super) until: usize,
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
        let few = self.one.iter().chain(others.clone().flat_map(|others| &others.few));
        let few = few.filter(move |held| overlaps(&held.range, &(start..end)));
        let listed = others.clone().flat_map(|others| &others.lists);
        let listed = listed.flat_map(move |list| list.overlapping(start..end));
        let listed = listed.map(|access| (HoldKind::Pending, access));
        let by_start = others.flat_map(move |others| others.counts(start..end));
        few.map(|held| (held.kind, held.access)).chain(listed).chain(by_start)
    }

    /// Adds a list.
    pub(super) fn add_list(&mut self, list: HeldList) {
        self.others.get_or_insert_default().lists.push(list);
    }

    /// Returns the list of a claim.
    pub(super) fn list_mut(&mut self, claim: u32) -> Option<&mut HeldList> {
        self.others.as_mut()?.lists.iter_mut().find(|list| list.claim == claim)
    }

    /// Releases a list. Returns it, to be dropped without the lock.
    pub(super) fn release_list(&mut self, claim: u32) -> Option<HeldList> {
        let lists = &mut self.others.as_mut()?.lists;
        let at = lists.iter().position(|list| list.claim == claim)?;
        Some(lists.swap_remove(at))
    }
}

impl HeldList {
    /// Returns whether a use conflicts with a range that is held.
    pub(super) fn conflicts(&self, range: &Range<usize>, access: Access) -> bool {
        self.overlapping(range.clone()).any(|held| held.conflicts_with(access))
    }

    /// Returns the access to the held ranges that overlap one.
    fn overlapping(&self, range: Range<usize>) -> impl Iterator<Item = Access> {
        let held = range.start..range.end.min(self.until);
        [Access::Read, Access::Write].into_iter().filter(move |access| self.ranges.overlaps(&held, *access))
    }
}

impl Others {
    fn is_empty(&self) -> bool {
        self.few.is_empty() && self.by_start.is_empty() && self.lists.is_empty()
    }

    fn add(&mut self, held: HeldRange) {
        if self.by_start.is_empty() && self.few.len() < MAX_LIST {
            self.few.push(held);
        } else {
            self.few.drain(..).chain([held]).for_each(|held| change(&mut self.by_start, &held, true));
        }
    }

    fn release(&mut self, held: &HeldRange) {
        if !self.by_start.is_empty() {
            change(&mut self.by_start, held, false);
        } else if let Some(index) = self.few.iter().position(|known| known == held) {
            self.few.swap_remove(index);
        }
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

/// Returns whether another use conflicts with one of this range.
pub(super) fn conflicts_with(range: &Range<usize>, access: Access) -> impl Fn(&Range<usize>, Access) -> bool {
    move |other, by| access.conflicts_with(by) && overlaps(range, other)
}
