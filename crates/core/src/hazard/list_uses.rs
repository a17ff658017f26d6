//! The uses of lists: each is kept as it was claimed, so that neither its commit nor its end takes time for each range.

use std::{ops::Range, sync::Arc};

use super::{
    Dependencies,
    list_ranges::ListRanges,
    steps,
    table::Table,
    uses::{Origins, Removed, Use},
};
use crate::{Access, Fence, Timeline};

/// The most lists in flight that are kept so: claims search them one by one. Others become segments.
const MAX_LISTS: usize = 16;

/// A list that was committed. Its bytes may have segments besides, of earlier uses and of later ones, and neither removes the other.
#[derive(Debug)]
pub(super) struct ListUse {
    ranges: ListRanges,
    pub(super) used: Use,
}

impl Table {
    /// Replaces the claim of a list by a use of the list. Returns whether it did: neither it nor any use of the table may fail, since the outcome
    /// of a write is recorded in segments.
    pub(super) fn commit_as_list(&mut self, claim: u32, fence: &Fence) -> bool {
        let can_fail = fence.can_fail() || self.origins.can_fail();
        if self.lists.len() >= MAX_LISTS || can_fail && !crate::mutant!("core/lists-can-fail") {
            return false;
        }
        let Some(list) = self.held.release_list(claim) else { return false };
        let used = self.origins.make(fence, claim, Access::Read);
        self.lists.push(ListUse { ranges: list.ranges, used });
        true
    }

    /// Collects the fences of lists that some uses, which are in order, conflict with, except those on the timeline `own` and those known to be
    /// complete.
    pub(super) fn collect_lists<'a>(
        &mut self,
        uses: impl IntoIterator<Item = (&'a Range<usize>, Access)> + Clone,
        own: Option<&Arc<dyn Timeline>>,
        after: &mut Dependencies,
    ) {
        for ListUse { ranges, used } in &self.lists {
            steps::count();
            let open = self.origins.of(used).filter(|origin| !own.is_some_and(|own| origin.is_of(own)));
            if let Some(origin) = open
                && !origin.is_reached(used.point)
                && ranges.conflict(uses.clone())
                && !crate::mutant!("core/lists-are-waited-for")
            {
                after.add(origin.timeline(), used.point);
            }
        }
    }

    /// Removes the lists that `which` selects.
    pub(super) fn remove_lists(
        &mut self,
        removed: &mut Removed,
        mut which: impl FnMut(&mut Origins, &Use) -> bool,
    ) {
        let origins = &mut self.origins;
        let first = removed.lists.len();
        removed.lists.extend(self.lists.extract_if(.., |list| which(origins, &list.used)));
        for list in first..removed.lists.len() {
            if let Some(used) = removed.lists.get(list).map(|list| list.used) {
                origins.release(&used, removed);
            }
        }
    }
}
