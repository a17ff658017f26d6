//! What is known of the uses of one allocation, under one lock.

use std::{ops::Range, sync::Arc, task::Waker};

use smallvec::SmallVec;

use super::{Dependencies, holder::Holder};
use crate::{Access, Fence, Timeline, few::Few};

/// Identifies a claim or a view of one table until it is committed, withdrawn or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub(super) u64);

/// A use that was enqueued: over when the fence is.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) range: Range<usize>,
    pub(super) access: Access,
    pub(super) fence: Fence,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) ticket: Ticket,
    pub(super) range: Range<usize>,
    pub(super) access: Access,
    pub(super) by: Holder,
}

/// Uses taken out of a table, to be dropped once its lock is open: a fence may be the last handle of its stream.
pub(super) type Removed = SmallVec<[Use; 8]>;

/// In this order what a copy touches lies together: most buffers have one use.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Table {
    pub(super) last_ticket: u64,
    /// How many of the claims and views so far were for writing.
    pub(super) writes: u64,
    /// A thread or a task waits for a claim to end.
    pub(super) awaited: bool,
    pub(super) held: SmallVec<[Held; 1]>,
    pub(super) uses: Few<Use>,
    /// Tasks that wait for a claim to end.
    pub(super) wakers: Vec<Waker>,
}

impl Table {
    #[inline]
    pub(super) fn hold(&mut self, range: Range<usize>, access: Access, by: Holder) -> Ticket {
        self.last_ticket += 1;
        self.writes += u64::from(access == Access::Write);
        let ticket = Ticket(self.last_ticket);
        self.held.push(Held { ticket, range, access, by });
        ticket
    }

    pub(super) fn release(&mut self, ticket: Ticket) -> Option<Held> {
        let index = self.held.iter().position(|held| held.ticket == ticket)?;
        Some(self.held.swap_remove(index))
    }

    /// Whether nobody holds anything, and the few uses are of the timeline `own`: then nothing is in the way of more work
    /// there, and nothing needs to be forgotten. Uses of its own that are over may stay: the next one takes their place.
    #[inline]
    pub(super) fn is_only_of(&self, own: &Arc<dyn Timeline>) -> bool {
        self.held.is_empty()
            && match self.uses.only() {
                Some(only) => only.fence.is_of_timeline(own),
                None => self.uses.is_empty() || self.has_two_of(own),
            }
    }

    #[inline]
    pub(super) fn has_two_of(&self, own: &Arc<dyn Timeline>) -> bool {
        self.uses.len() == 2 && self.uses.iter().all(|used| used.fence.is_of_timeline(own))
    }

    pub(super) fn forget_what_is_over(&mut self, removed: &mut Removed) {
        self.take_out(removed, |used| used.fence.is_known_done());
    }

    pub(super) fn take_out(&mut self, removed: &mut Removed, mut which: impl FnMut(&Use) -> bool) {
        let mut index = 0;
        while let Some(used) = self.uses.get(index) {
            if which(used) { removed.extend(self.uses.swap_remove(index)) } else { index += 1 }
        }
    }

    /// Whether a conflicting use that is not yet a fence stands in the way.
    pub(super) fn obstacle(&self, range: &Range<usize>, access: Access) -> Obstacle {
        let mut obstacle = Obstacle::None;
        for held in &self.held {
            if !(access.conflicts_with(held.access) && overlaps(&held.range, range)) {
                continue;
            }
            match held.by {
                Holder::View | Holder::Loan => return Obstacle::Open(held.by, held.access),
                Holder::Pending => obstacle = Obstacle::Pending,
            }
        }
        obstacle
    }

    /// Whether work is being enqueued on a part of the range.
    pub(super) fn is_pending(&self, range: &Range<usize>) -> bool {
        self.held.iter().any(|held| held.by == Holder::Pending && overlaps(&held.range, range))
    }

    /// As [`obstacle`](Self::obstacle), for who will wait: notes that somebody does.
    pub(super) fn must_wait(&mut self, range: &Range<usize>, access: Access) -> bool {
        let pending = matches!(self.obstacle(range, access), Obstacle::Pending);
        self.awaited |= pending;
        pending
    }

    /// Adds the fences of the uses in conflict that are not known to be over.
    pub(super) fn collect_open(&self, range: &Range<usize>, access: Access, after: &mut Dependencies) {
        self.collect(range, access, None, after);
        after.retain(|fence| !fence.is_known_done());
    }

    /// Adds the fences of the uses in conflict, but for those of the timeline `own`.
    pub(super) fn collect(
        &self,
        range: &Range<usize>,
        access: Access,
        own: Option<&Arc<dyn Timeline>>,
        after: &mut Dependencies,
    ) {
        for used in self.uses.iter() {
            if access.conflicts_with(used.access)
                && overlaps(&used.range, range)
                && !own.is_some_and(|own| used.fence.is_of_timeline(own))
            {
                after.push(used.fence.clone());
            }
        }
    }
}

pub(super) enum Obstacle {
    None,
    Pending,
    /// A view or a loan.
    Open(Holder, Access),
}

/// An empty range has no byte to conflict about, wherever it lies.
pub(super) fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

impl Held {
    /// Whether who comes after this, enqueued with `fence`, need not know `old` any more: the operation came after every
    /// conflicting use of its range; and an earlier read of the same timeline is implied by a later one.
    #[inline]
    pub(super) fn replaces(&self, old: &Use, fence: &Fence) -> bool {
        let covered = self.range.start <= old.range.start && old.range.end <= self.range.end;
        let implied = || {
            old.access == Access::Read
                && old.fence.is_of_timeline(fence.timeline())
                && old.fence.point() <= fence.point()
        };
        covered && (self.access == Access::Write || implied())
    }
}

impl Use {
    /// Becomes the use `held` of the same timeline.
    #[inline]
    pub(super) fn become_later(&mut self, held: &Held, fence: &Fence) {
        self.fence.move_to(fence.point().max(self.fence.point()));
        (self.range, self.access) = (held.range.clone(), held.access);
    }
}
