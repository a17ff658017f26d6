//! What is known of the uses of one allocation, under one lock.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use super::{
    Dependencies,
    holder::Holder,
    holds::{Conflict, Held, Holds},
    mark::mark,
    segments::{FEW, Kind, Removed, Segment, Segments, Use, Writes, Written},
    turns::{TurnId, TurnOf, Waiting},
};
use crate::{Access, Error, Fence, Timeline};

/// How many segments one call handles before it releases the lock for a moment.
pub(super) const STEPS: usize = 256;

/// How many segments are checked for completion in one sweep: more than a list has.
const SWEPT: usize = 32;

/// A long table is swept with one claim of so many while that finds something, which makes four segments a claim; a commit
/// adds three at most. While it finds nothing, the pause doubles up to the second number.
const SWEPT_EVERY: (u32, u32) = (8, 64);

const _: () = assert!(FEW < SWEPT);

/// A claim, a view or a loan of a range, until it is committed, withdrawn or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(super) access: Access,
    pub(super) by: Holder,
    /// The low bits of its number.
    pub(super) claim: u32,
}

impl Ticket {
    #[inline]
    pub(super) fn held(self, range: Range<usize>) -> Held {
        Held { range, access: self.access, by: self.by }
    }

    pub(super) fn used(self, fence: &Fence) -> Use {
        Use::new(fence, self.claim, self.access)
    }
}

/// Why a range cannot be held now.
pub(super) enum Blocked {
    /// By a claim, a view or a loan.
    By(Conflict),
    /// By a waiter, which comes first.
    Turn,
    /// By a waiter that waits for these.
    TurnUntil(Vec<Fence>),
}

/// In this order what a copy touches lies together: most buffers have one use.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Table {
    /// Number of claims and views so far, and of those for writing.
    pub(super) claims: u64,
    pub(super) writes: u64,
    /// Present while a thread or a task waits for a claim to end.
    pub(super) waiting: Option<Box<Waiting>>,
    pub(super) holds: Holds,
    pub(super) uses: Segments,
    /// Where the next sweep of a long table begins, after how many claims, and how many claims were between the last two.
    sweep_from: usize,
    sweep_in: u32,
    sweep_pause: u32,
}

impl Table {
    /// A table that begins with work in flight on the range.
    pub(super) fn behind(range: Range<usize>, fences: &[Fence]) -> Self {
        let mut table = Self::default();
        if !(fences.is_empty() || range.is_empty()) {
            let written = |fence: &Fence| {
                let used = Use::new(fence, 0, Access::Write);
                if crate::mutant!("core/new-block-is-unmarked") {
                    used
                } else {
                    Use { kind: Kind::Earlier, ..used }
                }
            };
            let uses = fences.iter().map(written).collect();
            table.uses.insert(Segment { start: range.start, end: range.end, uses });
        }
        table
    }

    /// Makes it that of another buffer, if all uses are known to be complete. Returns whether they are. What is still held was
    /// forgotten by its holder, who cannot use it any more; marks end with the buffer that they were about.
    #[inline]
    pub(super) fn renew(&mut self) -> bool {
        let in_flight = |used: &Use| !used.fence.is_known_done();
        if self.uses.iter_from(0).any(|segment| segment.uses.iter().any(in_flight))
            && !crate::mutant!("core/recycle-in-flight")
        {
            return false;
        }
        if self.claims > 0 || self.uses.listed().is_none_or(|few| !few.is_empty()) {
            *self = Self::default();
        }
        true
    }

    #[inline]
    pub(super) fn hold(&mut self, range: Range<usize>, access: Access, by: Holder) -> Ticket {
        self.claims += 1;
        self.writes += u64::from(access == Access::Write);
        let ticket = Ticket { access, by, claim: self.claims as u32 };
        self.holds.add(ticket.held(range));
        ticket
    }

    /// Takes back what was counted for a range that was held and not used.
    pub(super) fn was_no_use(&mut self, access: Access) {
        self.claims -= 1;
        self.writes -= u64::from(access == Access::Write);
    }

    /// Claims a range for work of the timeline `own` if nothing is held, nobody waits and the few uses are of that timeline:
    /// then nothing needs to be waited for. A use of its own that is complete may stay; the next one takes its place.
    #[inline]
    pub(super) fn claim_after_own(
        &mut self,
        range: &Range<usize>,
        access: Access,
        own: &Arc<dyn Timeline>,
    ) -> Option<Ticket> {
        let is_own = |segment: &Segment| match segment.uses.as_slice() {
            // What it reads must not be in doubt.
            [only] => only.fence.is_of_timeline(own) && (access == Access::Write || !only.may_damage()),
            _ => false,
        };
        let free = self.holds.is_empty()
            && self.waiting.is_none()
            && self.uses.listed().is_some_and(|few| few.len() <= 2 && few.iter().all(is_own));
        free.then(|| self.hold(range.clone(), access, Holder::Pending))
    }

    /// Holds a range if nothing conflicts with that.
    pub(super) fn try_hold(
        &mut self,
        range: &Range<usize>,
        access: Access,
        by: Holder,
        turn: Option<TurnId>,
        removed: &mut Removed,
    ) -> Result<Ticket, Blocked> {
        self.check(range, access, turn, removed)?;
        if let Some(waiting) = &mut self.waiting {
            waiting.overtake(range, access, turn);
        }
        Ok(self.hold(range.clone(), access, by))
    }

    /// Returns why a range cannot be held now, as an error.
    pub(super) fn check(
        &mut self,
        range: &Range<usize>,
        access: Access,
        turn: Option<TurnId>,
        removed: &mut Removed,
    ) -> Result<(), Blocked> {
        match self.holds.conflict(range, access) {
            Conflict::None => {}
            conflict => return Err(Blocked::By(conflict)),
        }
        let Some(waiting) = &mut self.waiting else { return Ok(()) };
        match waiting.turn_before(range, access, turn, removed) {
            TurnOf::Nobody => Ok(()),
            TurnOf::Waiter => Err(Blocked::Turn),
            TurnOf::Until(fences) => Err(Blocked::TurnUntil(fences)),
        }
    }

    /// Adds the fences of the uses in conflict that are not known to be complete, but for those of the timeline `own`. Adds
    /// the writes that can fail to `found`, if there is such, whether or not they are complete, and the last mark.
    /// Removes those that are complete into `prune`, if there is such. Begins with the last segment; returns the end of what
    /// is left to do after [`STEPS`] of them.
    pub(super) fn collect(
        &mut self,
        range: &Range<usize>,
        access: Access,
        own: Option<&Arc<dyn Timeline>>,
        after: &mut Dependencies,
        prune: Option<&mut Removed>,
        mut found: Option<&mut Found>,
    ) -> Option<usize> {
        let mut complete = SmallVec::<[usize; 8]>::new();
        let mut rest = None;
        for (index, segment) in self.uses.overlapping(range).enumerate() {
            if index == STEPS {
                rest = Some(segment.end.min(range.end));
                break;
            }
            for used in segment.uses.iter().filter(|used| access.conflicts_with(used.access)) {
                if let Some(found) = &mut found
                    && (used.may_damage() || used.kind == Kind::Mark)
                {
                    found.add(used, range.start.max(segment.start)..range.end.min(segment.end));
                }
                if own.is_some_and(|own| used.fence.is_of_timeline(own)) {
                    continue;
                }
                if !used.fence.is_known_done() {
                    after.add(&used.fence);
                } else if prune.is_some() && complete.last() != Some(&segment.start) {
                    complete.push(segment.start);
                }
            }
        }
        if let Some(removed) = prune {
            complete.into_iter().for_each(|start| self.prune(start, removed, Use::is_forgettable));
        }
        rest
    }

    /// Removes uses that are complete: all of a short table, some of a long one, the next ones with the next call.
    pub(super) fn sweep(&mut self, removed: &mut Removed) {
        // The commit sees to a single one.
        if self.uses.listed().is_some_and(|few| few.len() <= 1) {
            return;
        }
        let is_long = self.uses.listed().is_none();
        if is_long && self.sweep_in > 0 {
            self.sweep_in -= 1;
            return;
        }
        let mut complete = SmallVec::<[usize; SWEPT]>::new();
        let from = if is_long { self.sweep_from } else { 0 };
        self.sweep_from = 0;
        for (index, segment) in self.uses.iter_from(from).enumerate() {
            if index == SWEPT {
                self.sweep_from = segment.start;
                break;
            }
            if segment.uses.iter().any(Use::is_forgettable) {
                complete.push(segment.start);
            }
            for used in segment.uses.iter().filter(|used| used.may_damage() && used.fence.is_known_done()) {
                removed.unsettled.push(used.written(segment.start..segment.end));
            }
        }
        let (shortest, longest) = SWEPT_EVERY;
        let found = !(complete.is_empty() && removed.unsettled.is_empty());
        self.sweep_pause = if found { shortest } else { (2 * self.sweep_pause).clamp(shortest, longest) };
        self.sweep_in = self.sweep_pause - 1;
        complete.into_iter().for_each(|start| self.prune(start, removed, Use::is_forgettable));
    }

    /// Removes the uses of a range that `which` chooses. Returns the end of what is left to do after
    /// [`STEPS`] segments.
    pub(super) fn prune_within(
        &mut self,
        range: &Range<usize>,
        removed: &mut Removed,
        which: impl Fn(&Use) -> bool,
    ) -> Option<usize> {
        let found = self.uses.overlapping(range).map(|segment| (segment.start, segment.end));
        let mut found: SmallVec<[_; 8]> = found.take(STEPS + 1).collect();
        let rest = if found.len() > STEPS { found.pop() } else { None };
        found.into_iter().for_each(|(start, _)| self.prune(start, removed, &which));
        rest.map(|(_, end)| end.min(range.end))
    }

    /// Ends a write that can fail: forgets it, or puts a mark in its place. Returns the end of what is left to do after
    /// [`STEPS`] segments.
    pub(super) fn settle(
        &mut self,
        range: &Range<usize>,
        write: &Written,
        failure: Option<&Error>,
        removed: &mut Removed,
    ) -> Option<usize> {
        let is_it = |used: &Use| used.may_damage() && used.fence.is_same_as(&write.fence);
        let Some(error) = failure else { return self.prune_within(range, removed, is_it) };
        let found = self.uses.overlapping(range).map(|segment| (segment.start, segment.end));
        let mut found: SmallVec<[_; 8]> = found.take(STEPS + 1).collect();
        let rest = if found.len() > STEPS { found.pop() } else { None };
        for (start, end) in found {
            let Some(segment) = self.uses.get_mut(start) else { continue };
            for used in segment.uses.iter_mut().filter(|used| is_it(used)) {
                removed.push(std::mem::replace(&mut used.fence, mark(&(start..end), used.claim, error)));
                used.kind = Kind::Mark;
            }
        }
        rest.map(|(_, end)| end.min(range.end))
    }

    /// Cuts segments where the range begins and ends.
    pub(super) fn cut_out(&mut self, range: &Range<usize>) {
        self.uses.split(range.start);
        self.uses.split(range.end);
    }

    /// Removes the uses of one segment that `which` chooses.
    pub(super) fn prune(&mut self, start: usize, removed: &mut Removed, which: impl Fn(&Use) -> bool) {
        let Some(segment) = self.uses.get_mut(start) else { return };
        let mut index = 0;
        while let Some(used) = segment.uses.get(index) {
            if which(used) {
                removed.push(segment.uses.remove(index).fence);
            } else {
                index += 1;
            }
        }
        if segment.uses.is_empty() {
            let _without_uses = self.uses.remove(start);
        }
    }

    /// Releases a held range in favour of a use if that moves the only use on to a later point of its timeline. Calls
    /// nothing.
    #[inline]
    pub(super) fn move_on(&mut self, range: &Range<usize>, ticket: Ticket, fence: &Fence) -> bool {
        let Some(single) = self.uses.single_mut() else { return false };
        let [used] = single.uses.as_mut_slice() else { return false };
        let of_sources = fence.sources().is_some() || used.fence.sources().is_some();
        let covered = range.start <= single.start && single.end <= range.end;
        let replaces = ticket.access == Access::Write || used.access == Access::Read;
        let moves = covered
            && !of_sources
            && used.kind != Kind::Earlier
            && replaces
            && self.waiting.is_none()
            && used.fence.is_of_timeline(fence.timeline())
            && self.holds.release_only(&ticket.held(range.clone()));
        if moves {
            (single.start, single.end) = (range.start, range.end);
            (used.access, used.claim) = (ticket.access, ticket.claim);
            used.fence.move_to(used.fence.point().max(fence.point()));
        }
        moves
    }

    /// Replaces a held range by a use. What is held keeps conflicting uses away until this has returned `true`; it returns
    /// `false` after [`STEPS`] segments, to be called again with `from` as it left it.
    pub(super) fn commit(
        &mut self,
        range: &Range<usize>,
        ticket: Ticket,
        fence: &Fence,
        from: &mut usize,
        removed: &mut Removed,
    ) -> bool {
        let used = ticket.used(fence);
        let is_complete = match ticket.access {
            Access::Write => self.commit_write(range, used, removed),
            Access::Read => self.add(range, used, from, removed),
        };
        if is_complete {
            self.holds.release(&ticket.held(range.clone()));
        }
        is_complete
    }

    /// What was there before is implied: the write comes after it.
    fn commit_write(&mut self, range: &Range<usize>, used: Use, removed: &mut Removed) -> bool {
        let Range { start, end } = *range;
        if start == end {
            return true;
        }
        match self.uses.last_before_mut(end).filter(|last| last.end > start) {
            None => {
                self.uses.insert(Segment { start, end, uses: SmallVec::from_iter([used]) });
                return true;
            }
            Some(exact) if (exact.start, exact.end) == (start, end) => {
                removed.extend(exact.uses.drain(..).map(|old| old.fence));
                exact.uses.push(used);
                return true;
            }
            Some(_) => {}
        }
        if !crate::mutant!("core/write-keeps-the-rest") {
            self.uses.split(start);
            self.uses.split(end);
        }
        let mut steps = 0..STEPS;
        while let Some(last) = self.uses.last_before_mut(end).filter(|last| last.end > start) {
            if steps.next().is_none() {
                return false;
            }
            let at = last.start;
            let old = self.uses.remove(at).map(|old| old.uses);
            removed.extend(old.into_iter().flatten().map(|old| old.fence));
        }
        self.uses.insert(Segment { start, end, uses: SmallVec::from_iter([used]) });
        self.uses.join(start, removed);
        self.uses.join(end, removed);
        true
    }

    /// Adds a use beside what is there. It takes the place of those of its own timeline with the same access.
    pub(super) fn add(
        &mut self,
        range: &Range<usize>,
        used: Use,
        from: &mut usize,
        removed: &mut Removed,
    ) -> bool {
        if *from >= range.end {
            return true;
        }
        match self.uses.last_before_mut(range.end).filter(|last| last.end >= *from) {
            Some(left) if left.end == *from && left.has_only(&used) => {
                left.end = range.end;
                removed.push(used.fence);
                return true;
            }
            last if last.as_ref().is_none_or(|left| left.end == *from) => {
                let uses = SmallVec::from_iter([used]);
                self.uses.insert(Segment { start: *from, end: range.end, uses });
                return true;
            }
            Some(exact) if (exact.start, exact.end) == (*from, range.end) => {
                add_use(&mut exact.uses, used, removed);
                self.uses.join(*from, removed);
                return true;
            }
            _ => {}
        }
        self.uses.split(*from);
        self.uses.split(range.end);
        let mut steps = 0..STEPS;
        while *from < range.end {
            if steps.next().is_none() {
                return false;
            }
            let at = *from;
            let next = self.uses.iter_from(at).next().map(|next| (next.start, next.end));
            *from = match next {
                Some((start, end)) if start == at => {
                    if let Some(segment) = self.uses.get_mut(start) {
                        add_use(&mut segment.uses, used.clone(), removed);
                    }
                    end
                }
                // No use yet, up to the next segment.
                next => {
                    let end = next.map_or(range.end, |(start, _)| start.min(range.end));
                    let uses = SmallVec::from_iter([used.clone()]);
                    self.uses.insert(Segment { start: at, end, uses });
                    end
                }
            };
            self.uses.join(at, removed);
        }
        self.uses.join(range.end, removed);
        true
    }
}

/// Writes that can fail, of a range that is to be read.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) writes: Writes,
    pub(super) mark: Option<Fence>,
}

impl Found {
    fn add(&mut self, used: &Use, range: Range<usize>) {
        if used.kind == Kind::Mark {
            self.mark = Some(used.fence.clone());
        } else {
            self.writes.push(used.written(range));
        }
    }
}

fn add_use(uses: &mut SmallVec<[Use; 2]>, new: Use, removed: &mut Removed) {
    let mut index = 0;
    while let Some(used) = uses.get(index) {
        // What each of two failing writes damaged is told by its own point.
        let same = (used.access, used.kind) == (new.access, new.kind)
            && !used.may_damage()
            && used.fence.is_of_timeline(new.fence.timeline());
        if same && used.fence.point() > new.fence.point() {
            return removed.push(new.fence);
        }
        if same || used.is_forgettable() {
            removed.push(uses.remove(index).fence);
        } else {
            index += 1;
        }
    }
    uses.push(new);
}
