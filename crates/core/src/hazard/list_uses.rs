//! The uses of lists: each is kept as it was claimed, so that neither its commit nor its end takes time for each range.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use super::{
    Dependencies,
    commit::Retained,
    list_ranges::ListRanges,
    steps,
    table::Table,
    uses::{Origin, Origins, Removed, Use},
};
use crate::{Access, Fence, Timeline};

/// The most lists in flight that are kept so: claims search them one by one. Others become segments. A stream that nobody polls learns only after
/// some 64 later operations that one is complete, so fewer would often be too few.
const MAX_LISTS: usize = 96;

/// A list that was committed. Its bytes may have segments besides, of earlier uses and of later ones, and neither removes the other.
#[derive(Debug)]
pub(super) struct ListUse {
    ranges: Arc<ListRanges>,
    pub(super) used: Use,
}

/// The lists in flight that a use may have to come after, with their fences.
pub(super) type OpenLists = SmallVec<[(Arc<ListRanges>, Fence); 2]>;

impl Table {
    /// Replaces the claim of a list by a use of the list, which removes those that it supersedes. Returns whether it did: neither it nor any use
    /// of the table may fail, since the outcome of a write is recorded in segments.
    pub(super) fn commit_as_list(
        &mut self,
        claim: u32,
        (fence, retained): (&Fence, Retained),
        removed: &mut Removed,
    ) -> bool {
        let can_fail = fence.can_fail() || self.origins.can_fail();
        if can_fail && !crate::mutant!("core/lists-can-fail") {
            return false;
        }
        let Some(ranges) = self.held.list_mut(claim).map(|list| Arc::clone(&list.ranges)) else {
            return false;
        };
        let used = self.origins.make(fence, claim, Access::Read);
        let follows = ranges.are_written() && !retained.cross_device;
        // Two threads that read the same ranges may commit in another order than a queue took their work.
        let mut is_newest = true;
        self.remove_lists(removed, |origins, old| {
            let same = origins.same_timeline(&old.used, &used) && old.ranges == ranges;
            let is_older = old.used.point <= used.point || crate::mutant!("core/later-list-stays");
            is_newest &= follows || !same || is_older;
            follows && old.ranges == ranges || same && is_older
        });
        if !is_newest {
            self.origins.release(&used, removed);
        } else if self.lists.len() >= MAX_LISTS {
            self.origins.release(&used, removed);
            return false;
        } else {
            self.lists.push(ListUse { ranges, used });
        }
        // The ranges are in use still.
        drop(self.held.release_list(claim));
        true
    }

    /// Returns whether a list is to be removed, or conflicts with a use of a range that is not on the timeline `own`.
    #[inline(never)]
    pub(super) fn is_listed(
        &mut self,
        range: &Range<usize>,
        access: Access,
        own: Option<&Arc<dyn Timeline>>,
    ) -> bool {
        self.lists.iter().any(|ListUse { ranges, used }| {
            let is_own = |origins: &mut Origins| {
                own.zip(origins.of(used)).is_some_and(|(own, origin)| origin.is_of(own))
            };
            self.origins.is_complete(used) || !is_own(&mut self.origins) && ranges.conflict([(range, access)])
        })
    }

    /// Calls `found` for each list in flight that is not on the timeline `own`.
    fn each_open(
        &mut self,
        own: Option<&Arc<dyn Timeline>>,
        mut found: impl FnMut(&Arc<ListRanges>, &Origin, &Use),
    ) {
        for ListUse { ranges, used } in &self.lists {
            steps::count();
            if let Some(origin) = self.origins.of(used)
                && !own.is_some_and(|own| origin.is_of(own))
                && !origin.is_reached(used.point)
                && !crate::mutant!("core/lists-are-waited-for")
            {
                found(ranges, origin, used);
            }
        }
    }

    /// Collects the fences of lists in flight that a use of a range conflicts with, except those on the timeline `own`. Drops no fence.
    pub(super) fn collect_lists(
        &mut self,
        range: &Range<usize>,
        access: Access,
        own: Option<&Arc<dyn Timeline>>,
        after: &mut Dependencies,
    ) {
        self.each_open(own, |ranges, origin, used| {
            if ranges.conflict([(range, access)]) {
                after.add(origin.timeline(), used.point);
            }
        });
    }

    /// Returns the lists in flight that are not on the timeline `own`, to be searched without the lock for all ranges of another list.
    pub(super) fn open_lists(&mut self, own: Option<&Arc<dyn Timeline>>) -> OpenLists {
        let mut open = OpenLists::new();
        self.each_open(own, |ranges, origin, used| open.push((Arc::clone(ranges), origin.fence(used))));
        open
    }

    /// Removes the lists that `which` selects.
    pub(super) fn remove_lists(
        &mut self,
        removed: &mut Removed,
        mut which: impl FnMut(&mut Origins, &ListUse) -> bool,
    ) {
        let origins = &mut self.origins;
        let first = removed.lists.len();
        removed.lists.extend(self.lists.extract_if(.., |list| which(origins, list)));
        for list in first..removed.lists.len() {
            if let Some(used) = removed.lists.get(list).map(|list| list.used) {
                origins.release(&used, removed);
            }
        }
    }
}
