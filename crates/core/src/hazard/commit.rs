//! How a held range becomes a use: what it replaces, and what it is added to.

use std::ops::Range;

use super::{
    segments::{Position, Segment},
    table::{Table, Ticket},
    uses::{MAX_SEARCHED, Origins, Removed, Use, Uses, last_few, uncovered, writes},
};
use crate::{Access, Fence};

/// A use that takes the place of a ticket.
pub(super) struct NewUse<'a> {
    pub(super) fence: &'a Fence,
    pub(super) claim: u32,
    pub(super) access: Access,
    pub(super) effect: Effect,
    /// Whether it comes after work of another device, which stays beside it until that is over: with its own device lost, this
    /// use counts as over at once.
    pub(super) cross_device: bool,
}

/// What of earlier uses a write leaves.
#[derive(Clone, Copy, Default)]
pub(crate) struct Retained {
    /// What may have damaged bytes.
    pub(crate) damage: bool,
    /// What is in flight on another device.
    pub(crate) cross_device: bool,
}

/// What a new use makes of those that are there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing: it lies beside them.
    Concurrent,
    /// It comes after them, and may leave bytes as they are: those that may have damaged bytes stay.
    Keeps,
    /// It comes after them. If it can fail, those that may have damaged bytes stay under it, until it has ended.
    Replaces,
}

impl Table {
    /// Replaces a held range by a use if that takes the place of the only one of that very range, of the same origin. Returns
    /// whether it did: most often.
    #[inline]
    pub(super) fn commit_fast(
        &mut self,
        range: &Range<usize>,
        ticket: &Ticket,
        fence: &Fence,
        keeps: bool,
    ) -> bool {
        if let Some(Segment { end, uses, .. }) = self.segments.beginning_at(range.start)
            && let [old] = uses.as_mut_slice()
            && let Some(used) = self.origins.with_origin_of(old, fence, ticket.claim, ticket.access)
            && *end == range.end
            && (used.replaces(old) || ticket.access == Access::Write && !keeps && old.is_sound())
        {
            *old = used;
            self.release(range, *ticket);
            return true;
        }
        self.commit_short(range, ticket, fence, keeps)
    }

    /// Replaces a held range by a use if the uses of that very range are one or two, as most often, or have one of which it
    /// says all; and if that removes no origin. Returns whether it did.
    #[inline(never)]
    fn commit_short(&mut self, range: &Range<usize>, ticket: &Ticket, fence: &Fence, keeps: bool) -> bool {
        let Some(Segment { end, uses, .. }) = self.segments.beginning_at(range.start) else { return false };
        let &Ticket { access, claim, .. } = ticket;
        let Some(used) = self.origins.find(fence, claim, access) else { return false };
        let is_implied = |old: &Use| access == Access::Write && !keeps && old.is_sound();
        let is_committed = match uses.as_mut_slice() {
            _ if *end != range.end => false,
            [old] if used.replaces(old) || is_implied(old) || self.origins.is_removable(old) => {
                self.origins.exchange(old, used)
            }
            [_] if access == Access::Read => {
                self.origins.share(&used);
                uses.push(used);
                true
            }
            [one, other] if is_implied(one) && is_implied(other) && used.is_of_origin_of(other) => {
                let is_exchanged = self.origins.exchange(one, used);
                if is_exchanged {
                    self.origins.unshare(&used);
                    uses.truncate(1);
                }
                is_exchanged
            }
            all if access == Access::Read => {
                let old = all.iter_mut().rev().take(MAX_SEARCHED).find(|old| used.replaces(old));
                old.is_some_and(|old| self.origins.exchange(old, used))
            }
            _ => false,
        };
        if is_committed {
            self.release(range, *ticket);
        }
        is_committed
    }

    /// Replaces a held range by a use, from `from` on. Returns whether that is done, or else has set `from` to where to go on
    /// with other `steps`. What is held keeps conflicting uses away until then.
    #[inline(never)]
    pub(super) fn commit(
        &mut self,
        range: &Range<usize>,
        ticket: &Ticket,
        (fence, retained): (&Fence, Retained),
        from: &mut usize,
        steps: &mut usize,
        removed: &mut Option<Removed>,
    ) -> bool {
        let removed = removed.get_or_insert_default();
        let &Ticket { claim, access, .. } = ticket;
        let effect = match access {
            Access::Read => Effect::Concurrent,
            Access::Write if retained.damage => Effect::Keeps,
            Access::Write => Effect::Replaces,
        };
        let new = NewUse { fence, claim, access, effect, cross_device: retained.cross_device };
        let is_committed = match effect {
            Effect::Replaces if !fence.can_fail() && !new.cross_device => {
                self.commit_write(range, &new, steps, removed)
            }
            _ => self.add(from, range.end, &new, steps, removed),
        };
        if is_committed {
            self.release(range, *ticket);
            // A timeline keeps its queue alive, so a short table is swept, too, where other queues come.
            if std::mem::take(&mut self.origins.has_new) && self.segments.are_several() {
                self.segments.sweep_at = self.segments.sweep_at.min(-1);
            }
        }
        is_committed
    }

    /// What was there before is implied: the write comes after it, and cannot fail.
    fn commit_write(
        &mut self,
        range: &Range<usize>,
        new: &NewUse<'_>,
        steps: &mut usize,
        removed: &mut Removed,
    ) -> bool {
        let Range { start, end } = *range;
        if start == end {
            return true;
        }
        let cuts = !crate::mutant!("core/write-keeps-the-rest");
        loop {
            let at = self.segments.seek(start);
            match self.segments.get_mut(at).filter(|segment| segment.start < end) {
                None => {
                    let used = self.origins.make(new.fence, new.claim, Access::Write);
                    self.segments.insert(at, Segment::new(range.clone(), used));
                    return true;
                }
                Some(exact) if (exact.start, exact.end) == (start, end) => {
                    let used = self.origins.make(new.fence, new.claim, Access::Write);
                    exact.uses.drain(..).for_each(|old| self.origins.release(&old, removed));
                    exact.uses.push(used);
                    return true;
                }
                Some(segment) if segment.start < start && cuts => self.cut(start),
                Some(_) => {
                    if cuts {
                        self.cut(end);
                    }
                    let all = |origins: &mut Origins, segment: &mut Segment| {
                        segment.uses.drain(..).for_each(|old| origins.release(&old, removed));
                    };
                    if self.change(range, steps, all).is_some() {
                        return false;
                    }
                }
            }
        }
    }

    /// Adds a use to what is there. It takes the place of those of its own timeline with the same access.
    pub(super) fn add(
        &mut self,
        from: &mut usize,
        end: usize,
        new: &NewUse<'_>,
        steps: &mut usize,
        removed: &mut Removed,
    ) -> bool {
        while *from < end {
            if *steps == 0 {
                return false;
            }
            *steps -= 1;
            let at = self.segments.seek(*from);
            match self.segments.get_mut(at) {
                Some(segment) if segment.start < *from => self.cut(*from),
                Some(segment) if segment.start == *from && segment.end > end => self.cut(end),
                Some(segment) if segment.start == *from => {
                    *from = segment.end;
                    let used = self.origins.make(new.fence, new.claim, new.access);
                    if add_use(&mut self.origins, &mut segment.uses, used, new, removed) {
                        // So that there are not many more of them than are in flight.
                        self.origins.find_unresolved(segment, false, &mut removed.unresolved);
                    }
                    self.merge(at, removed);
                }
                // No use yet, up to the next segment.
                next => {
                    let until = next.map_or(end, |next| next.start.min(end));
                    let used = self.origins.make(new.fence, new.claim, new.access);
                    self.segments.insert(at, Segment::new(*from..until, used));
                    *from = until;
                }
            }
        }
        true
    }

    fn merge(&mut self, at: Position, removed: &mut Removed) {
        let joined = self.segments.merge(at);
        joined.iter().flatten().for_each(|used| self.origins.release(used, removed));
    }
}

/// Returns whether some that may have damaged the bytes stay.
fn add_use(
    origins: &mut Origins,
    uses: &mut Uses,
    mut new: Use,
    &NewUse { effect, cross_device, .. }: &NewUse<'_>,
    removed: &mut Removed,
) -> bool {
    let mut is_newest = true;
    let repairs = effect == Effect::Replaces && !new.may_damage();
    // None of what is covered goes. Of many reads beside it, a read looks at all where the list is full, which doubles it if
    // they stay.
    let is_full = uses.len() == uses.capacity();
    let from = match new.access() {
        Access::Write if repairs => 0,
        Access::Read if !is_full => last_few(uses),
        _ => uncovered(uses),
    };
    origins.remove(uses, from, removed, |origins, used| {
        // What each of two failing writes damaged is told by its own point.
        let same = (used.access(), used.kind()) == (new.access(), new.kind())
            && !used.may_damage()
            && origins.same_timeline(used, &new);
        is_newest &= !(same && used.point > new.point);
        let is_before = effect != Effect::Concurrent
            && (repairs || used.is_sound())
            && !(cross_device && origins.runs_on_other_device(used, &new));
        is_before || (same && used.point <= new.point) || origins.is_removable(used)
    });
    let stay = effect != Effect::Concurrent && !uses.is_empty();
    if stay && effect == Effect::Replaces && !repairs {
        new = new.covering();
    }
    if is_full {
        uses.reserve(uses.len());
    }
    if is_newest {
        let at = if new.access() == Access::Write { writes(uses) } else { uses.len() };
        uses.insert(at, new);
    } else {
        origins.release(&new, removed);
    }
    stay
}
