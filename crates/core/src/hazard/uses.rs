//! Enqueued uses, and their timelines.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use super::steps;
use super::{Dependencies, list_uses::ListUse};
use crate::{Access, Fence, Timeline};

/// How many origins are compared with that of a fence before another one is added, and how many reads with a
/// new one.
pub(super) const MAX_SEARCHED: usize = 16;

/// An enqueued use, complete when its timeline reaches `point`. Its timeline is in the table's [`Origins`],
/// so copying or dropping a use changes no shared reference count. Two words in size, so that a segment
/// stores two uses inline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) point: u64,
    /// Number of the claim that it was made by.
    pub(super) claim: u32,
    /// Packed: the index of its origin, then one bit for [`covers`](Self::covers), two for its kind, and one
    /// for its access. No table has 2²⁸ origins.
    packed: u32,
}

/// What the end of a use means for its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum UseKind {
    /// Nothing: it can fail only with its device.
    Infallible,
    /// It can fail on its own.
    Fallible,
    /// Nothing: it is work on an earlier allocation of the memory.
    Earlier,
    /// A write that has failed.
    Mark,
}

/// The uses of one range, writes before reads: usually at most one write, and the reads after it, about one
/// for each timeline. Writes that may have damaged the bytes precede a fallible write.
pub(super) type Uses = SmallVec<[Use; 2]>;

/// Returns the index of the last covering write, or 0. The uses before it count only if that write fails.
pub(super) fn uncovered(uses: &[Use]) -> usize {
    let writes = uses.get(..writes(uses)).unwrap_or_default();
    writes.iter().inspect(|_| steps::count()).rposition(Use::covers).unwrap_or(0)
}

/// Returns the number of writes.
pub(super) fn writes(uses: &[Use]) -> usize {
    uses.partition_point(|used| used.access() == Access::Write)
}

/// Returns the index of the first of the last [`MAX_SEARCHED`] uses that are not covered.
pub(super) fn last_few(uses: &[Use]) -> usize {
    uncovered(uses).max(uses.len().saturating_sub(MAX_SEARCHED))
}

impl Use {
    #[inline]
    fn new(fence: &Fence, claim: u32, origin: u32, access: Access, kind: UseKind) -> Self {
        let packed = origin << 4 | (kind as u32) << 1 | u32::from(access == Access::Write);
        Self { point: fence.point(), claim, packed }
    }

    /// Returns the same use with another kind.
    pub(super) fn of_kind(self, kind: UseKind) -> Self {
        Self { packed: self.packed & !0b110 | (kind as u32) << 1, ..self }
    }

    /// Returns a use by another claim.
    pub(super) fn of_claim(self, claim: u32, access: Access) -> Self {
        Self { claim, packed: self.packed & !1 | u32::from(access == Access::Write), ..self }
    }

    /// Makes it a write that covers all uses before it in the segment. They count again only if it fails
    /// without having written.
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

    /// Returns whether the bytes are valid after this use, if they were before.
    #[inline]
    pub(super) fn is_sound(&self) -> bool {
        !matches!((self.access(), self.kind()), (Access::Write, UseKind::Fallible | UseKind::Mark))
    }

    /// Returns whether the bytes are valid only if this write succeeds.
    #[inline]
    pub(super) fn may_damage(&self) -> bool {
        self.access() == Access::Write && self.kind() == UseKind::Fallible
    }

    /// Returns whether this use supersedes the other: waiting for this one is enough.
    #[inline]
    pub(super) fn replaces(&self, other: &Self) -> bool {
        self.packed == other.packed && self.point >= other.point && !other.may_damage()
    }

    #[inline]
    pub(super) fn is_of_origin_of(&self, other: &Self) -> bool {
        self.origin() == other.origin()
    }

    /// Returns whether both are equal except for their claims.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        Self { claim: other.claim, ..*self } == *other
    }
}

/// The timelines of a table's uses, each with the sources of those uses. An origin is dropped with its last
/// use.
#[derive(Debug, Default)]
pub(super) struct Origins {
    list: SmallVec<[Option<Origin>; 2]>,
    vacant: SmallVec<[u32; 4]>,
    /// Whether one was added since the last commit.
    pub(super) has_new: bool,
    /// How many have uses that may fail on their own.
    fallible: u32,
}

#[derive(Debug)]
pub(super) struct Origin {
    /// A fence at the last point known to be reached.
    known: Fence,
    /// Kind of its uses.
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

    /// Returns whether a use with this fence belongs to this origin.
    #[inline]
    fn matches(&self, fence: &Fence) -> bool {
        self.is_of(fence.timeline()) && self.known.has_sources_of(fence)
    }

    /// Returns whether a point is known to be reached, without querying the driver.
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
    /// Returns a use of a fence, if its origin is that of `used`. Does not count it.
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

    /// Returns a use of a fence, if its origin is known. Does not count it.
    pub(super) fn find(&self, fence: &Fence, claim: u32, access: Access) -> Option<Use> {
        let mut searched = self.list.iter().take(MAX_SEARCHED).zip(0..);
        searched.find_map(|(origin, index)| {
            let kind = origin.as_ref().filter(|origin| origin.matches(fence))?.kind;
            Some(Use::new(fence, claim, index, access, kind))
        })
    }

    /// Returns a use of a fence and counts it: store it in one segment, or [release](Self::release) it.
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
        self.fallible += u32::from(kind == UseKind::Fallible);
        let index = self.vacant.pop().unwrap_or(self.list.len() as u32);
        match self.list.get_mut(index as usize) {
            Some(vacant) => *vacant = origin,
            None => self.list.push(origin),
        }
        Use::new(fence, claim, index, access, kind)
    }

    /// Returns whether a use may fail on its own, or has.
    pub(super) fn can_fail(&self) -> bool {
        self.fallible > 0
    }

    /// Returns the number of origins.
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

    /// Returns whether a use is on another device than `other` and not known to be complete.
    pub(super) fn runs_on_other_device(&mut self, used: &Use, other: &Use) -> bool {
        let device = self.of(other).map(|origin| origin.timeline().device());
        self.of(used).is_some_and(|origin| {
            Some(origin.timeline().device()) != device && !origin.is_reached(used.point)
        })
    }

    /// Collects the fences of covered writes that are in flight on other devices than the covering one, which came after them: a device
    /// that is lost counts as done, whatever it waited for.
    #[cold]
    pub(super) fn collect_covered(
        &mut self,
        uses: &[Use],
        covered: usize,
        own: Option<&Arc<dyn Timeline>>,
        after: &mut Dependencies,
    ) {
        let Some((earlier, [covering, ..])) = uses.split_at_checked(covered) else { return };
        for used in earlier {
            if self.runs_on_other_device(used, covering)
                && let Some(origin) = self.of(used).filter(|origin| !own.is_some_and(|own| origin.is_of(own)))
            {
                after.add(origin.timeline(), used.point);
            }
        }
    }

    /// Replaces a use by an uncounted one, if no origin is removed by that. Returns whether it did.
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

    /// Replaces the uses of a segment by one that is not counted yet, or adds it, if there are few, or one that it supersedes, and no
    /// origin is removed by that. Returns whether it did. If it `keeps` bytes, it supersedes no use that it is not the same as.
    pub(super) fn replace(&mut self, uses: &mut Uses, used: Use, keeps: bool) -> bool {
        let access = used.access();
        let is_implied = |old: &Use| access == Access::Write && !keeps && old.is_sound();
        match uses.as_mut_slice() {
            [old] if used.replaces(old) || is_implied(old) || self.is_removable(old) => {
                self.exchange(old, used)
            }
            [_] if access == Access::Read => {
                self.share(&used);
                uses.push(used);
                true
            }
            [one, other] if is_implied(one) && is_implied(other) && used.is_of_origin_of(other) => {
                let is_exchanged = self.exchange(one, used);
                if is_exchanged {
                    self.unshare(&used);
                    uses.truncate(1);
                }
                is_exchanged
            }
            all if access == Access::Read => {
                let old = all.iter_mut().rev().take(MAX_SEARCHED).find(|old| used.replaces(old));
                old.is_some_and(|old| self.exchange(old, used))
            }
            _ => false,
        }
    }

    /// Counts a copy of a use.
    #[inline]
    pub(super) fn share(&mut self, used: &Use) {
        if let Some(origin) = self.of(used) {
            origin.uses += 1;
        }
    }

    /// Undoes one [`share`](Self::share) of a use that has other copies.
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
            self.fallible -= u32::from(origin.kind == UseKind::Fallible);
            removed.fences.extend(place.take().map(|origin| origin.known));
            self.vacant.push(used.origin());
        }
    }

    #[inline]
    pub(super) fn is_complete(&mut self, used: &Use) -> bool {
        self.of(used).is_none_or(|origin| origin.is_reached(used.point))
    }

    /// Adds the fence of a use that is not known to be complete.
    pub(super) fn add_open(&mut self, used: &Use, found: &mut impl Extend<Fence>) {
        if !self.is_complete(used) {
            found.extend(self.of(used).map(|origin| origin.fence(used)));
        }
    }

    /// Returns whether a use is complete and needs no further check.
    #[inline]
    pub(super) fn is_removable(&mut self, used: &Use) -> bool {
        used.kind() != UseKind::Mark && !used.may_damage() && self.is_complete(used)
    }

    /// Collects those of a range's uses that are writes which may have damaged it: all, or the complete ones. Of the covered
    /// writes only the middle one is checked: writes of the same bytes complete in order, so at most about
    /// twice as many as are in flight stay, and removing half of them costs no more than the search.
    pub(super) fn find_unresolved(
        &mut self,
        range: Range<usize>,
        uses: &Uses,
        all: bool,
        found: &mut FallibleWrites,
    ) {
        let covered = if all { 0 } else { uncovered(uses) };
        let middle = uses.iter().take(covered).skip(covered / 2).take(1);
        let others = uses.iter().skip(covered).take_while(|used| used.access() == Access::Write);
        for used in middle.chain(others).filter(|used| used.may_damage()) {
            steps::count();
            if let Some(origin) = self.of(used)
                && (all || origin.is_reached(used.point))
            {
                found.push(origin.fallible_write(used, range.clone()));
            }
        }
    }

    /// Removes the uses from index `from` on that `which` selects.
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

/// What to do after the lock is released. Stored inline if short, so that a warm transfer allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Removed {
    /// Fences to be dropped: one may be the last handle of its stream.
    pub(super) fences: SmallVec<[Fence; 2]>,
    /// Complete writes whose outcomes are not applied yet.
    pub(super) unresolved: FallibleWrites,
    /// Lists to be dropped: they may be long.
    pub(super) lists: Vec<ListUse>,
}

/// Fallible writes.
pub(super) type FallibleWrites = SmallVec<[FallibleWrite; 2]>;

/// A fallible write and its bytes.
#[derive(Clone, Debug)]
pub(super) struct FallibleWrite {
    pub(super) range: Range<usize>,
    pub(super) fence: Fence,
    pub(super) claim: u32,
}
