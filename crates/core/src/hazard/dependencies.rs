//! The fences that an operation must wait for: the last point of each timeline.

use std::{cmp::Reverse, ops::Deref, sync::Arc};

use smallvec::SmallVec;

use crate::{Fence, Timeline};

/// How many fences are compared before another one is added.
const MAX_SEARCHED: usize = 16;

/// Fences, deduplicated by [`fold`](Self::fold) to the last point of each timeline. Up to eight are stored
/// inline.
#[derive(Debug, Default)]
pub(crate) struct Dependencies {
    fences: SmallVec<[Fence; 8]>,
    /// Number of fences after the last sort.
    folded: usize,
}

impl Dependencies {
    /// Adds a point of a timeline. The search for another point of it is bounded, so that it may run under a
    /// lock; `fold` removes the duplicates that it misses.
    pub(crate) fn add(&mut self, timeline: &Arc<dyn Timeline>, point: u64) {
        let mut searched = self.fences.iter_mut().take(MAX_SEARCHED);
        match searched.find(|known| known.is_of_timeline(timeline)) {
            Some(known) if known.point() < point && !crate::mutant!("core/fold-to-last") => {
                known.move_to(point);
            }
            Some(_) => {}
            None => self.fences.push(Fence::of_known(Arc::clone(timeline), point)),
        }
    }

    /// Adds a fence that the caller named, whatever of its timeline is known.
    #[cold]
    pub(crate) fn add_fence(&mut self, fence: &Fence) {
        self.add(fence.timeline(), fence.point());
        self.fold();
    }

    /// Keeps one fence for each timeline. Drops fences, so it must not run under a lock. Sorts only after the
    /// list has doubled, so all calls together cost O(n log n).
    #[inline]
    pub(crate) fn fold(&mut self) {
        if self.fences.len() > MAX_SEARCHED {
            self.fold_many();
        }
    }

    fn fold_many(&mut self) {
        if self.fences.len() > 2 * self.folded {
            self.fences.sort_unstable_by_key(|fence| (fence.timeline_address(), Reverse(fence.point())));
            self.fences.dedup_by(|later, kept| later.is_of_timeline(kept.timeline()));
            self.folded = self.fences.len();
        }
    }

    pub(crate) fn retain(&mut self, mut which: impl FnMut(&Fence) -> bool) {
        self.fences.retain(|fence| which(fence));
    }

    pub(crate) fn into_vec(self) -> Vec<Fence> {
        self.fences.into_vec()
    }
}

impl Deref for Dependencies {
    type Target = [Fence];

    #[inline]
    fn deref(&self) -> &[Fence] {
        &self.fences
    }
}
