//! Uses that were enqueued, and the timelines that they are on.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use super::segments::{Segment, steps};
use crate::{Access, Fence, Timeline};

/// How many origins are searched for that of a fence before it gets another one; and how many reads for one that a new one
/// replaces.
pub(super) const MAX_SEARCHED: usize = 16;

/// A use that was enqueued, complete when its timeline reaches the point. The timeline is in the table's [`Origins`], so that
/// a use is copied and dropped without a count that threads share. In two words, since a segment that is searched has room for
/// two uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) point: u64,
    /// Number of the claim that it was made by.
    pub(super) claim: u32,
    /// The number of its origin, then a bit for [`covers`](Self::covers), two for its kind and one for its access. No memory has
    /// room for so many origins that the rest is too short.
    packed: u32,
}

/// What the end of a use means for the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum UseKind {
    /// Nothing: it can fail only with its device.
    Infallible,
    /// It can fail by itself.
    Fallible,
    /// Nothing: it is work on an earlier allocation of the memory.
    Earlier,
    /// It has failed, and this is what stays.
    Mark,
}

/// The uses of one range, writes before reads: most often at most one write, and the reads after it, about one for each timeline.
/// Before a write that can fail lie those that may have damaged the bytes.
pub(super) type Uses = SmallVec<[Use; 2]>;

/// Returns the place of the last write that covers others, or 0: what lies before it counts only if that fails.
pub(super) fn uncovered(uses: &[Use]) -> usize {
    let writes = uses.get(..writes(uses)).unwrap_or_default();
    writes.iter().inspect(|_| steps::count()).rposition(Use::covers).unwrap_or(0)
}

/// Returns how many of them are writes.
pub(super) fn writes(uses: &[Use]) -> usize {
    uses.partition_point(|used| used.access() == Access::Write)
}

/// Returns the place of the first of the last few, of those that are not covered.
pub(super) fn last_few(uses: &[Use]) -> usize {
    uncovered(uses).max(uses.len().saturating_sub(MAX_SEARCHED))
}

impl Use {
    #[inline]
    fn new(fence: &Fence, claim: u32, origin: u32, access: Access, kind: UseKind) -> Self {
        let packed = origin << 4 | (kind as u32) << 1 | u32::from(access == Access::Write);
        Self { point: fence.point(), claim, packed }
    }

    /// Returns it with another kind.
    pub(super) fn of_kind(self, kind: UseKind) -> Self {
        Self { packed: self.packed & !0b110 | (kind as u32) << 1, ..self }
    }

    /// Makes it a write over all uses before it in the segment. Those count again only if it fails and wrote nothing.
    pub(super) fn covering(self) -> Self {
        Self { packed: self.packed | 0b1000, ..self }
    }

    #[inline]
    pub(super) fn covers(&self) -> bool {
        self.packed & 0b1000 != 0
    }

    #[inline]
    fn origin(&self) -> u32 {
        self.packed >> 4
    }

    #[inline]
    pub(super) fn access(&self) -> Access {
        if self.packed & 1 == 0 { Access::Read } else { Access::Write }
    }

    #[inline]
    pub(super) fn kind(&self) -> UseKind {
        match self.packed >> 1 & 0b11 {
            0 => UseKind::Infallible,
            1 => UseKind::Fallible,
            2 => UseKind::Earlier,
            _ => UseKind::Mark,
        }
    }

    /// Returns whether the bytes are as it wrote them, if it did.
    #[inline]
    pub(super) fn is_sound(&self) -> bool {
        !matches!((self.access(), self.kind()), (Access::Write, UseKind::Fallible | UseKind::Mark))
    }

    /// Returns whether the bytes are as they should only if it succeeds.
    #[inline]
    pub(super) fn may_damage(&self) -> bool {
        self.access() == Access::Write && self.kind() == UseKind::Fallible
    }

    /// Returns whether this says all that the other one does.
    #[inline]
    pub(super) fn replaces(&self, other: &Self) -> bool {
        self.packed == other.packed && self.point >= other.point && !other.may_damage()
    }

    #[inline]
    pub(super) fn is_of_origin_of(&self, other: &Self) -> bool {
        self.origin() == other.origin()
    }

    /// Returns whether both are the same for the bytes, whichever claims they were made by.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        Self { claim: other.claim, ..*self } == *other
    }
}

/// The timelines of a table's uses, each with the sources of those uses. One is dropped with its last use.
#[derive(Debug, Default)]
pub(super) struct Origins {
    list: SmallVec<[Option<Origin>; 2]>,
    vacant: SmallVec<[u32; 4]>,
    /// Whether one was added since the last commit.
    pub(super) has_new: bool,
}

#[derive(Debug)]
pub(super) struct Origin {
    /// At the last point that is known to be reached.
    known: Fence,
    /// Of its uses.
    kind: UseKind,
    uses: u32,
}

impl Origin {
    pub(super) fn timeline(&self) -> &Arc<dyn Timeline> {
        self.known.timeline()
    }

    #[inline]
    pub(super) fn is_of(&self, timeline: &Arc<dyn Timeline>) -> bool {
        self.known.is_of_timeline(timeline)
    }

    /// Returns whether uses with this fence are its.
    #[inline]
    fn matches(&self, fence: &Fence) -> bool {
        self.is_of(fence.timeline()) && self.known.has_sources_of(fence)
    }

    /// Returns whether a point is known to be reached, without asking the driver.
    #[inline]
    pub(super) fn is_reached(&mut self, point: u64) -> bool {
        if self.known.point() < point {
            self.known.move_to(self.known.timeline().reached());
        }
        self.known.point() >= point
    }

    pub(super) fn fence(&self, used: &Use) -> Fence {
        let mut fence = self.known.clone();
        fence.move_to(used.point);
        fence
    }

    pub(super) fn fallible_write(&self, used: &Use, range: Range<usize>) -> FallibleWrite {
        FallibleWrite { range, fence: self.fence(used), claim: used.claim }
    }
}

impl Origins {
    /// Returns a use of a fence, if it has the origin of an earlier use. It is not counted.
    #[inline]
    pub(super) fn with_origin_of(
        &mut self,
        used: &Use,
        fence: &Fence,
        claim: u32,
        access: Access,
    ) -> Option<Use> {
        let origin = self.of(used).filter(|origin| origin.matches(fence))?;
        Some(Use::new(fence, claim, used.origin(), access, origin.kind))
    }

    /// Returns a use of a fence, if its origin is known. It is not counted.
    pub(super) fn find(&self, fence: &Fence, claim: u32, access: Access) -> Option<Use> {
        let mut searched = self.list.iter().take(MAX_SEARCHED).zip(0..);
        searched.find_map(|(origin, index)| {
            let kind = origin.as_ref().filter(|origin| origin.matches(fence))?.kind;
            Some(Use::new(fence, claim, index, access, kind))
        })
    }

    /// Makes a use of a fence, to be kept in one place or to be [released](Self::release).
    pub(super) fn make(&mut self, fence: &Fence, claim: u32, access: Access) -> Use {
        let used = match self.find(fence, claim, access) {
            Some(used) => used,
            None => self.add(fence, claim, access),
        };
        self.share(&used);
        used
    }

    #[inline(never)]
    fn add(&mut self, fence: &Fence, claim: u32, access: Access) -> Use {
        let kind = if fence.can_fail() { UseKind::Fallible } else { UseKind::Infallible };
        let mut known = fence.clone();
        known.move_to(0);
        let origin = Some(Origin { known, kind, uses: 0 });
        self.has_new = true;
        let index = self.vacant.pop().unwrap_or(self.list.len() as u32);
        match self.list.get_mut(index as usize) {
            Some(vacant) => *vacant = origin,
            None => self.list.push(origin),
        }
        Use::new(fence, claim, index, access, kind)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.list.len() - self.vacant.len()
    }

    #[inline]
    pub(super) fn of(&mut self, used: &Use) -> Option<&mut Origin> {
        self.list.get_mut(used.origin() as usize)?.as_mut()
    }

    pub(super) fn same_timeline(&self, one: &Use, other: &Use) -> bool {
        let origin = |used: &Use| self.list.get(used.origin() as usize)?.as_ref();
        one.origin() == other.origin()
            || origin(one).zip(origin(other)).is_some_and(|(one, other)| one.is_of(other.timeline()))
    }

    /// Returns whether a use is of another device than the other one, and not known to be over.
    pub(super) fn runs_on_other_device(&mut self, used: &Use, other: &Use) -> bool {
        let device = self.of(other).map(|origin| origin.timeline().device());
        self.of(used).is_some_and(|origin| {
            Some(origin.timeline().device()) != device && !origin.is_reached(used.point)
        })
    }

    /// Puts a use that is not counted in the place of another, if that removes no origin. Returns whether it did.
    #[inline]
    pub(super) fn exchange(&mut self, old: &mut Use, new: Use) -> bool {
        if old.origin() != new.origin() {
            let Some(origin) = self.of(old).filter(|origin| origin.uses > 1) else { return false };
            origin.uses -= 1;
            self.share(&new);
        }
        *old = new;
        true
    }

    /// Counts a copy of a use.
    #[inline]
    pub(super) fn share(&mut self, used: &Use) {
        if let Some(origin) = self.of(used) {
            origin.uses += 1;
        }
    }

    /// Takes back one [`share`](Self::share) of a use that is kept elsewhere, too.
    #[inline]
    pub(super) fn unshare(&mut self, used: &Use) {
        if let Some(origin) = self.of(used) {
            origin.uses -= 1;
        }
    }

    #[inline]
    pub(super) fn release(&mut self, used: &Use, removed: &mut Removed) {
        let Some(place) = self.list.get_mut(used.origin() as usize) else { return };
        let Some(origin) = place else { return };
        origin.uses -= 1;
        if origin.uses == 0 {
            removed.fences.extend(place.take().map(|origin| origin.known));
            self.vacant.push(used.origin());
        }
    }

    #[inline]
    pub(super) fn is_complete(&mut self, used: &Use) -> bool {
        self.of(used).is_none_or(|origin| origin.is_reached(used.point))
    }

    /// Returns whether nothing needs to be known of a use any more.
    #[inline]
    pub(super) fn is_removable(&mut self, used: &Use) -> bool {
        used.kind() != UseKind::Mark && !used.may_damage() && self.is_complete(used)
    }

    /// Adds the writes of a segment that may have damaged it: all, or those that are over. Of what is covered one is looked at,
    /// that in the middle: writes of the same bytes end in order, so there are at most about twice as many as are in flight,
    /// and to forget half of them takes the time of the search.
    pub(super) fn find_unresolved(&mut self, segment: &Segment, all: bool, found: &mut FallibleWrites) {
        let uses = &segment.uses;
        let covered = if all { 0 } else { uncovered(uses) };
        let middle = uses.iter().take(covered).skip(covered / 2).take(1);
        let others = uses.iter().skip(covered).take_while(|used| used.access() == Access::Write);
        for used in middle.chain(others).filter(|used| used.may_damage()) {
            steps::count();
            if let Some(origin) = self.of(used)
                && (all || origin.is_reached(used.point))
            {
                found.push(origin.fallible_write(used, segment.start..segment.end));
            }
        }
    }

    /// Removes the uses that `which` chooses, of those from a place on.
    pub(super) fn remove(
        &mut self,
        uses: &mut Uses,
        from: usize,
        removed: &mut Removed,
        mut which: impl FnMut(&mut Self, &Use) -> bool,
    ) {
        let mut kept = from;
        for at in from..uses.len() {
            steps::count();
            let Some(used) = uses.get(at).copied() else { break };
            if which(self, &used) {
                self.release(&used, removed);
            } else {
                uses.swap(kept, at);
                kept += 1;
            }
        }
        uses.truncate(kept);
    }
}

/// What is left to do once the lock is released. Inline where it is little: a warm transfer allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Removed {
    /// Fences to be dropped: one may be the last handle of its stream.
    pub(super) fences: SmallVec<[Fence; 2]>,
    /// Writes that are complete and may have failed, to be asked.
    pub(super) unresolved: FallibleWrites,
}

/// Writes that can fail.
pub(super) type FallibleWrites = SmallVec<[FallibleWrite; 2]>;

/// A write that can fail, and the bytes in question.
#[derive(Clone, Debug)]
pub(super) struct FallibleWrite {
    pub(super) range: Range<usize>,
    pub(super) fence: Fence,
    pub(super) claim: u32,
}
