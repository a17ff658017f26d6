//! Turns a claim into a use: what the use replaces, and what it is added to.

use std::ops::Range;

use super::{
    segments::{Position, Segment},
    table::{Table, Ticket},
    uses::{Origins, Removed, Use, last_few, uncovered, writes},
};
use crate::{Access, Fence};

/// A use that replaces a claim.
pub(super) struct NewUse<'a> {
    pub(super) fence: &'a Fence,
    pub(super) claim: u32,
    pub(super) access: Access,
    pub(super) effect: Effect,
    /// Whether it follows work of another device. That work stays in the table until it is complete: if this
    /// use's own device is lost, this use counts as complete at once.
    pub(super) cross_device: bool,
}

/// Which earlier uses a write keeps in the table.
#[derive(Clone, Copy, Default)]
pub(crate) struct Retained {
    /// Those that may have damaged bytes.
    pub(crate) damage: bool,
    /// Those in flight on another device.
    pub(crate) cross_device: bool,
}

/// What a new use does to the uses in the table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing: it runs concurrently with them.
    Concurrent,
    /// Follows them and may leave bytes unchanged, so uses that may have damaged bytes stay.
    Keeps,
    /// Follows them. If it can fail, uses that may have damaged bytes stay below it until it has ended.
    Replaces,
}

impl Effect {
    pub(super) fn of(access: Access, retained: Retained) -> Self {
        match access {
            Access::Read => Self::Concurrent,
            Access::Write if retained.damage => Self::Keeps,
            Access::Write => Self::Replaces,
        }
    }
}

impl Table {
    /// Replaces a claim by a use, if the table has exactly one use of this range and of the same origin, and
    /// the new use supersedes it. Returns whether it did. This is the common case.
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

    /// Replaces a claim by a use, if the range has one or two uses, or one that the new use supersedes, and
    /// if no origin is removed. Returns whether it did.
    #[inline(never)]
    fn commit_short(&mut self, range: &Range<usize>, ticket: &Ticket, fence: &Fence, keeps: bool) -> bool {
        let Some(Segment { end, uses, .. }) = self.segments.beginning_at(range.start) else { return false };
        let &Ticket { access, claim, .. } = ticket;
        let Some(used) = self.origins.find(fence, claim, access) else { return false };
        let is_committed = *end == range.end && self.origins.replace(uses, used, keeps);
        if is_committed {
            self.release(range, *ticket);
        }
        is_committed
    }

    /// Replaces a claim by a use, starting at `from`. Returns `true` when done; otherwise `from` is where to
    /// continue with new `steps`. Until then the claim blocks conflicting uses.
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
        let effect = Effect::of(access, retained);
        let new = NewUse { fence, claim, access, effect, cross_device: retained.cross_device };
        let is_committed = match effect {
            Effect::Replaces if !fence.can_fail() && !new.cross_device => {
                self.commit_write(range, &new, steps, removed)
            }
            _ => self.add(from, range.end, &new, steps, removed),
        };
        if is_committed {
            self.release(range, *ticket);
            self.sweep_if_new();
        }
        is_committed
    }

    /// A timeline keeps its queue alive, so short tables are also swept when a new queue appears.
    pub(super) fn sweep_if_new(&mut self) {
        let keeps_others = self.segments.are_several() || !self.lists.is_empty() && !self.segments.is_empty();
        if std::mem::take(&mut self.origins.has_new) && keeps_others {
            self.segments.sweep_at = self.segments.sweep_at.min(-1);
        }
    }

    /// Replaces all earlier uses: the write follows them and cannot fail.
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

    /// Adds a use. It replaces uses of the same timeline and access.
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
                    add_use(&mut self.origins, segment, used, (new.effect, new.cross_device), removed);
                    self.merge(at, removed);
                }
                // Unused bytes up to the next segment.
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

/// Adds a use to those of a segment, and removes those that it supersedes.
pub(super) fn add_use(
    origins: &mut Origins,
    segment: &mut Segment,
    mut new: Use,
    (effect, cross_device): (Effect, bool),
    removed: &mut Removed,
) {
    let range = segment.range();
    let uses = &mut segment.uses;
    let mut is_newest = true;
    let repairs = effect == Effect::Replaces && !new.may_damage();
    // Covered uses are kept. A read next to many other reads checks all of them only if the list is full; if
    // none is removed, the list doubles.
    let is_full = uses.len() == uses.capacity();
    let from = match new.access() {
        Access::Write if repairs => 0,
        Access::Read if !is_full => last_few(uses),
        _ => uncovered(uses),
    };
    origins.remove(uses, from, removed, |origins, used| {
        // Of two failing writes, each reports its damage by its own point.
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
    if stay {
        // Limits the list to about what is in flight.
        origins.find_unresolved(range, uses, false, &mut removed.unresolved);
    }
}
