//! The uses of one allocation, protected by one lock.

use std::{ops::Range, sync::Arc};

use super::{
    held_ranges::{Conflict, HeldList, HeldRanges, conflicts_with},
    hold_kind::HoldKind,
    list_ranges::ListRanges,
    list_uses::ListUse,
    mark::mark,
    request::Claimed,
    segments::{Segment, Segments},
    turns::{Predecessor, TurnId, WaitQueue},
    uses::{FallibleWrite, Origins, Removed, Use, UseKind, last_few},
};
use crate::{Access, Error, Fence, Timeline};

/// Segments that one call visits before it releases the lock for a moment.
pub(super) const STEPS_PER_LOCK: usize = 256;

/// The fast path gives up on segments with more uses than this.
const MAX_CHECKED: usize = 8;

/// Segments that one sweep visits.
const SWEEP_LIMIT: usize = 32;

/// Claims between sweeps of a table with several timelines: the minimum, and the maximum up to which the
/// interval doubles while sweeps remove no timeline.
const SWEEP_INTERVALS: (u32, u32) = (8, 2048);

/// The range of all segments.
const ALL: Range<usize> = 0..usize::MAX;

/// A claim, a view or a loan of a range, until it is committed, withdrawn or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) access: Access,
    pub(super) kind: HoldKind,
    /// The low bits of the claim's number, which is the same for all ranges of a list.
    pub(super) claim: u32,
    pub(super) is_listed: bool,
}

/// Why a range cannot be held now.
pub(super) enum Blocked {
    /// By a claim, a view or a loan.
    By(Conflict),
    /// By a waiter that goes first.
    Turn,
    /// By a waiter that goes first and waits for these fences.
    TurnUntil(Vec<Fence>),
}

/// Field order matters: a copy uses the first fields only, in the common case of one use for each buffer.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Table {
    /// Number of claims and views so far, and of those for writing.
    pub(super) claims: u64,
    pub(super) writes: u64,
    /// Present while a thread or a task waits for a claim to end.
    pub(super) waiting: Option<Box<WaitQueue>>,
    pub(super) held: HeldRanges,
    pub(super) segments: Segments,
    pub(super) origins: Origins,
    pub(super) lists: Vec<ListUse>,
    /// Where the next sweep begins.
    sweep_from: usize,
    sweep_interval: u32,
}

impl Table {
    /// Creates a table with work in flight on the range.
    pub(super) fn with_fences(range: Range<usize>, fences: &[Fence]) -> Self {
        let mut table = Self::default();
        if !(fences.is_empty() || range.is_empty()) {
            let mut earlier_write = |fence: &Fence| {
                let used = table.origins.make(fence, 0, Access::Write);
                if crate::mutant!("core/new-block-is-unmarked") {
                    used
                } else {
                    used.of_kind(UseKind::Earlier)
                }
            };
            let uses = fences.iter().map(&mut earlier_write).collect();
            let at = table.segments.seek(range.start);
            table.segments.insert(at, Segment { start: range.start, end: range.end, uses });
        }
        table
    }

    /// Resets the table for a new buffer, if all uses are known to be complete. Returns whether they are.
    /// Ranges still held belong to leaked guards, which cannot be used any more; marks end with their buffer.
    #[inline]
    pub(super) fn renew(&mut self) -> bool {
        let mut in_flight = |used: &Use| !self.origins.is_complete(used);
        let is_used = self.segments.overlapping(&ALL).any(|segment| segment.uses.iter().any(&mut in_flight))
            || self.lists.iter().any(|list| in_flight(&list.used));
        if is_used && !crate::mutant!("core/recycle-in-flight") {
            return false;
        }
        if self.claims > 0 || !self.segments.is_empty() {
            *self = Self::default();
        }
        true
    }

    /// Holds a range and counts the use. The count is never decremented, so claim numbers are unique.
    #[inline]
    pub(super) fn hold(&mut self, range: &Range<usize>, access: Access, kind: HoldKind) -> Ticket {
        self.claims += 1;
        self.writes += u64::from(access == Access::Write);
        self.held.add(range, access, kind);
        Ticket { access, kind, claim: self.claims as u32, is_listed: false }
    }

    /// Ends a hold.
    #[inline]
    pub(super) fn release(&mut self, range: &Range<usize>, ticket: Ticket) {
        self.held.release(range, ticket.access, ticket.kind);
    }

    /// Returns whether a claim needs no wait and no further check: nothing is held, no thread waits, no sweep
    /// is due, and all conflicting uses are complete or on the timeline `own`.
    #[inline(always)]
    pub(super) fn is_free(
        &mut self,
        range: &Range<usize>,
        access: Access,
        own: Option<&Arc<dyn Timeline>>,
    ) -> bool {
        if self.waiting.is_some()
            || !self.held.is_empty()
            || self.is_sweep_due()
            || (!self.lists.is_empty() && self.is_listed(range, access, own))
        {
            return false;
        }
        if self.segments.is_empty() {
            return true;
        }
        let segment = match self.segments.beginning_at(range.start) {
            None => {
                let at = self.segments.seek(range.start);
                self.segments.get_mut(at)
            }
            found => found,
        };
        if let Some(segment) = segment
            && segment.start < range.end
        {
            let is_free = |used: &Use| {
                !access.conflicts_with(used.access())
                    || self.origins.of(used).is_some_and(|origin| {
                        (access == Access::Write || used.is_sound())
                            && (own.is_some_and(|own| origin.is_of(own)) || origin.is_reached(used.point))
                    })
            };
            return segment.end >= range.end
                && segment.uses.len() <= MAX_CHECKED
                && segment.uses.iter().all(is_free);
        }
        true
    }

    /// Holds the few ranges of a group, up to the first that is blocked. They do not conflict with each other.
    pub(super) fn hold_all(
        &mut self,
        group: &mut [Claimed<'_>],
        turn: Option<TurnId>,
        removed: &mut Removed,
    ) -> Result<(), (Blocked, Range<usize>)> {
        let is_free = self.is_unclaimed();
        for Claimed { range, access, ticket, .. } in &mut *group {
            if !is_free {
                self.check(range, *access, turn, removed).map_err(|blocked| (blocked, range.clone()))?;
            }
            *ticket = Some(self.hold(range, *access, HoldKind::Pending));
        }
        if let Some(waiting) = &mut self.waiting {
            let conflicts = |waited: &Range<usize>, by| {
                group.iter().any(|one| conflicts_with(&one.range, one.access)(waited, by))
            };
            waiting.overtake(conflicts, turn);
        }
        Ok(())
    }

    /// Adds a list of ranges that do not conflict with each other, and counts their uses. Returns the number of the claim, and whether all
    /// are held now; otherwise none is.
    pub(super) fn add_list(&mut self, ranges: Arc<ListRanges>) -> (u32, bool) {
        let is_free = self.is_unclaimed();
        let (count, writes) = ranges.counts();
        // Each list has a number of its own, also one of empty ranges.
        self.claims += count.max(1) as u64;
        self.writes += writes as u64;
        let (claim, until) = (self.claims as u32, if is_free { usize::MAX } else { 0 });
        self.held.add_list(HeldList { claim, ranges, until });
        (claim, is_free)
    }

    /// Returns whether nothing is held, and no thread waits: all ranges are free.
    fn is_unclaimed(&self) -> bool {
        self.waiting.is_none() && self.held.is_empty() || crate::mutant!("core/held-by-others")
    }

    /// Returns whether a range can be held now, or why not.
    #[inline]
    pub(super) fn admit(
        &mut self,
        range: &Range<usize>,
        access: Access,
        turn: Option<TurnId>,
        removed: &mut Removed,
    ) -> Result<(), Blocked> {
        self.check(range, access, turn, removed)?;
        if let Some(waiting) = &mut self.waiting {
            waiting.overtake(conflicts_with(range, access), turn);
        }
        Ok(())
    }

    /// Counts a list that is held, once for each waiter that it overtakes.
    pub(super) fn overtake_by_list(&mut self, claim: u32, turn: Option<TurnId>) {
        if let Some((waiting, list)) = self.waiting.as_mut().zip(self.held.list_mut(claim)) {
            waiting.overtake(|waited, by| list.conflicts(waited, by), turn);
        }
    }

    /// Like [`admit`](Self::admit), but does not count overtaken waiters.
    #[inline]
    pub(super) fn check(
        &mut self,
        range: &Range<usize>,
        access: Access,
        turn: Option<TurnId>,
        removed: &mut Removed,
    ) -> Result<(), Blocked> {
        match self.held.conflict(range, access) {
            Conflict::None => {}
            conflict => return Err(Blocked::By(conflict)),
        }
        let Some(waiting) = &mut self.waiting else { return Ok(()) };
        match waiting.predecessor(range, access, turn, removed) {
            Predecessor::None => Ok(()),
            Predecessor::Waiter => Err(Blocked::Turn),
            Predecessor::Until(fences) => Err(Blocked::TurnUntil(fences)),
        }
    }

    /// Collects the fences of all uses from a byte on that are not known to be complete. Returns where to
    /// continue after [`STEPS_PER_LOCK`] segments.
    pub(super) fn outstanding(&mut self, from: usize, found: &mut impl Extend<Fence>) -> Option<usize> {
        let lists = self.lists.iter().filter(|_| from == 0);
        lists.for_each(|list| self.origins.add_open(&list.used, found));
        for (index, segment) in self.segments.overlapping(&(from..usize::MAX)).enumerate() {
            if index == STEPS_PER_LOCK {
                return Some(segment.start);
            }
            segment.uses.iter().for_each(|used| self.origins.add_open(used, found));
        }
        None
    }

    #[inline]
    fn is_sweep_due(&self) -> bool {
        self.segments.sweep_at <= self.claims as i64
    }

    /// Removes complete uses from the next part of a table that has grown by a block or has several
    /// timelines, which keep their queues alive.
    #[inline]
    pub(super) fn sweep(&mut self, removed: &mut Removed) {
        if self.is_sweep_due() {
            self.sweep_some(removed);
        }
    }

    #[inline(never)]
    fn sweep_some(&mut self, removed: &mut Removed) {
        let timelines = self.origins.len();
        let next = self.change(&(self.sweep_from..usize::MAX), &mut { SWEEP_LIMIT }, |origins, segment| {
            let from = last_few(&segment.uses);
            origins.remove(&mut segment.uses, from, removed, |origins, used| origins.is_removable(used));
            origins.find_unresolved(segment.range(), &segment.uses, false, &mut removed.unresolved);
        });
        self.sweep_from = next.unwrap_or(0);
        let (shortest, longest) = SWEEP_INTERVALS;
        let rest = self.origins.len();
        if rest < timelines {
            self.sweep_interval = shortest;
        } else if self.segments.sweep_at > 0 {
            self.sweep_interval = (2 * self.sweep_interval).clamp(shortest, longest);
        }
        self.segments.sweep_at = match self.segments.sweep_at.min(-1) + 1 {
            0 if rest > 1 => self.claims as i64 + i64::from(self.sweep_interval.max(shortest)),
            0 => i64::MAX,
            others => others,
        };
    }

    /// Applies `change` to each segment that overlaps a range, and removes segments without uses. Returns
    /// where to continue when no `steps` are left.
    pub(super) fn change(
        &mut self,
        range: &Range<usize>,
        steps: &mut usize,
        mut change: impl FnMut(&mut Origins, &mut Segment),
    ) -> Option<usize> {
        if range.is_empty() {
            return None;
        }
        let mut block = self.segments.seek(range.start).block;
        loop {
            let list = self.segments.block_mut(block)?;
            let (mut next, mut is_last) = (None, false);
            list.retain(|segment| {
                is_last |= segment.start >= range.end;
                if is_last || next.is_some() || segment.end <= range.start {
                    return true;
                }
                if *steps == 0 {
                    next = Some(segment.start.max(range.start));
                    return true;
                }
                super::steps::count();
                *steps -= 1;
                change(&mut self.origins, segment);
                !segment.uses.is_empty()
            });
            let is_dropped = self.segments.drop_empty(block);
            if next.is_some() || is_last || (is_dropped && self.segments.is_empty()) {
                return next;
            }
            block += usize::from(!is_dropped);
        }
    }

    /// Removes the uses of a range that `which` selects. Returns where to continue after [`STEPS_PER_LOCK`]
    /// segments.
    pub(super) fn prune(
        &mut self,
        range: &Range<usize>,
        removed: &mut Removed,
        mut which: impl FnMut(&mut Origins, &Use) -> bool,
    ) -> Option<usize> {
        self.change(range, &mut { STEPS_PER_LOCK }, |origins, segment| {
            origins.remove(&mut segment.uses, 0, removed, &mut which);
        })
    }

    /// Applies the outcome of a fallible write: removes it, or replaces it by a mark. The uses that it covers
    /// are removed, too, unless it wrote nothing. Returns where to continue after [`STEPS_PER_LOCK`]
    /// segments.
    pub(super) fn record_outcome(
        &mut self,
        range: &Range<usize>,
        write: &FallibleWrite,
        outcome_of_write: WriteOutcome<'_>,
        removed: &mut Removed,
    ) -> Option<usize> {
        let is_it = |origins: &mut Origins, used: &Use| {
            super::steps::count();
            used.may_damage()
                && used.point == write.fence.point()
                && origins.of(used).is_some_and(|origin| origin.is_of(write.fence.timeline()))
        };
        self.change(range, &mut { STEPS_PER_LOCK }, |origins, segment| {
            let Segment { start, end, uses } = segment;
            if let Some(mut at) = uses.iter().rposition(|used| is_it(origins, used)) {
                if uses.get(at).is_some_and(Use::covers)
                    && !matches!(outcome_of_write, WriteOutcome::Untouched)
                {
                    uses.drain(..std::mem::take(&mut at)).for_each(|used| origins.release(&used, removed));
                }
                let used = uses.remove(at);
                origins.release(&used, removed);
                if let WriteOutcome::Damaged(error) = outcome_of_write {
                    let mark = mark(&(*start..*end), used.claim, error);
                    let mark = origins.make(&mark, used.claim, Access::Write);
                    uses.insert(at, mark.of_kind(UseKind::Mark));
                }
            }
        })
    }

    /// Splits segments at both ends of the range.
    pub(super) fn cut_out(&mut self, range: &Range<usize>) {
        self.cut(range.start);
        self.cut(range.end);
    }

    /// Splits the segment that has bytes on both sides of `byte`.
    pub(super) fn cut(&mut self, byte: usize) {
        let at = self.segments.seek(byte);
        let Some(left) = self.segments.get_mut(at).filter(|segment| segment.start < byte) else { return };
        let right = Segment { start: byte, end: left.end, uses: left.uses.clone() };
        left.end = byte;
        right.uses.iter().for_each(|used| self.origins.share(used));
        let next = self.segments.seek(byte);
        self.segments.insert(next, right);
    }
}

/// How a fallible write ended.
#[derive(Clone, Copy)]
pub(super) enum WriteOutcome<'a> {
    Succeeded,
    /// It failed with this error, and the bytes are undefined.
    Damaged(&'a Error),
    /// It failed, but did not change the bytes.
    Untouched,
}
