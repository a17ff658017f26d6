//! Ranges held without a fence: pending claims, host views and loans.

use std::{collections::BTreeMap, ops::Range};

use super::{holder::Holder, segments::steps};
use crate::Access;

/// How many are kept as a list.
const FEW: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) range: Range<usize>,
    pub(super) access: Access,
    pub(super) by: Holder,
}

/// What conflicts with a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    None,
    /// Another thread is between its claim and its commit.
    Pending,
    /// A view or a loan.
    Open(Holder, Access),
}

/// All that is held.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// Most often the only one.
    one: Option<Held>,
    others: Option<Box<Others>>,
}

/// What is held beside it: a short list, or counts for each stretch of bytes if there is much.
#[derive(Debug, Default)]
struct Others {
    few: Vec<Held>,
    many: Counted,
}

/// Counts by the start of the stretch that they are for, which ends where the next one starts. Entries of equal ranges,
/// accesses and holders are not told apart.
type Counted = BTreeMap<usize, Counts>;

/// The number of entries by holder and access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts([u32; 6]);

const KINDS: [(Holder, Access); 6] = [
    (Holder::Pending, Access::Read),
    (Holder::Pending, Access::Write),
    (Holder::View, Access::Read),
    (Holder::View, Access::Write),
    (Holder::Loan, Access::Read),
    (Holder::Loan, Access::Write),
];

impl Counts {
    fn change(&mut self, held: &Held, up: bool) {
        for (kind, count) in KINDS.iter().zip(&mut self.0) {
            if *kind == (held.by, held.access) {
                *count = if up { count.saturating_add(1) } else { count.saturating_sub(1) };
            }
        }
    }

    fn kinds(&self) -> impl Iterator<Item = (Holder, Access)> {
        KINDS.into_iter().zip(self.0).filter(|(_, count)| *count > 0).map(|(kind, _)| kind)
    }
}

impl Holds {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.one.is_none() && self.others.as_ref().is_none_or(|others| others.is_empty())
    }

    /// An empty range has no byte to conflict about, so it is not kept.
    #[inline]
    pub(super) fn add(&mut self, range: &Range<usize>, access: Access, by: Holder) {
        if self.one.is_some() {
            self.add_other(range, access, by);
        } else if !range.is_empty() {
            self.one = Some(Held { range: range.clone(), access, by });
        }
    }

    #[inline(never)]
    fn add_other(&mut self, range: &Range<usize>, access: Access, by: Holder) {
        if !range.is_empty() {
            self.others.get_or_insert_default().add(Held { range: range.clone(), access, by });
        }
    }

    #[inline]
    pub(super) fn release(&mut self, range: &Range<usize>, access: Access, by: Holder) {
        match &self.one {
            Some(one) if (&one.range, one.access, one.by) == (range, access, by) => self.one = None,
            _ => self.release_other(range, access, by),
        }
    }

    #[inline(never)]
    fn release_other(&mut self, range: &Range<usize>, access: Access, by: Holder) {
        if let Some(others) = self.others.as_mut().filter(|_| !range.is_empty()) {
            others.release(&Held { range: range.clone(), access, by });
        }
    }

    /// Returns what conflicts with a use; a view or a loan rather than a claim, since it is not waited for.
    #[inline]
    pub(super) fn conflict(&self, range: &Range<usize>, access: Access) -> Conflict {
        if self.is_empty() { Conflict::None } else { self.conflict_among(range, access) }
    }

    fn conflict_among(&self, range: &Range<usize>, access: Access) -> Conflict {
        let mut conflict = Conflict::None;
        for (by, held) in self.overlapping(range) {
            match by {
                _ if !access.conflicts_with(held) => {}
                Holder::View | Holder::Loan if crate::mutant!("core/view-excludes-work") => {}
                Holder::View | Holder::Loan => return Conflict::Open(by, held),
                Holder::Pending => conflict = Conflict::Pending,
            }
        }
        conflict
    }

    /// Returns whether work is being enqueued on a part of the range.
    pub(super) fn is_pending(&self, range: &Range<usize>) -> bool {
        self.overlapping(range).any(|(by, _)| by == Holder::Pending)
    }

    fn overlapping(&self, range: &Range<usize>) -> impl Iterator<Item = (Holder, Access)> {
        let Range { start, end } = *range;
        let others = self.others.as_deref().into_iter();
        let few = self.one.iter().chain(others.clone().flat_map(|others| &others.few));
        let few = few.filter(move |held| overlaps(&held.range, &(start..end)));
        let many = others.flat_map(move |others| others.counts(start..end));
        few.map(|held| (held.by, held.access)).chain(many)
    }
}

impl Others {
    fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.is_empty()
    }

    fn add(&mut self, held: Held) {
        if self.many.is_empty() && self.few.len() < FEW {
            self.few.push(held);
        } else {
            self.few.drain(..).chain([held]).for_each(|held| change(&mut self.many, &held, true));
        }
    }

    fn release(&mut self, held: &Held) {
        if !self.many.is_empty() {
            change(&mut self.many, held, false);
        } else if let Some(index) = self.few.iter().position(|known| known == held) {
            self.few.swap_remove(index);
        }
    }

    /// What the stretches say that overlap a range.
    fn counts(&self, Range { start, end }: Range<usize>) -> impl Iterator<Item = (Holder, Access)> {
        let first = match self.many.range(..=start).next_back() {
            Some((at, _)) if start < end => *at,
            _ => start,
        };
        let stretches = self.many.range(first..end.max(first)).inspect(|_| steps::count());
        stretches.flat_map(|(_, counts)| counts.kinds())
    }
}

/// Counts one entry more or less on its range; stretches with equal counts become one.
fn change(many: &mut Counted, held: &Held, up: bool) {
    let Range { start, end } = held.range;
    for at in [start, end] {
        let before = many.range(..=at).next_back().map_or(Counts::default(), |(_, counts)| *counts);
        many.entry(at).or_insert(before);
    }
    for (_, counts) in many.range_mut(start..end) {
        steps::count();
        counts.change(held, up);
    }
    for at in [start, end] {
        let before = many.range(..at).next_back().map_or(Counts::default(), |(_, counts)| *counts);
        if many.get(&at) == Some(&before) {
            many.remove(&at);
        }
    }
}

/// An empty range has no byte to conflict about, wherever it lies.
pub(super) fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}
