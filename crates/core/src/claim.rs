//! The right to use ranges of buffers, held from before work is enqueued until its fence is known.

use std::{fmt, sync::Arc};

use smallvec::{SmallVec, smallvec};

use crate::{
    BufferId, Fence, Queue, RawBuffer, Result, Timeline,
    hazard::{Dependencies, Ticket, Woken},
    obstacle::{Obstacle, Unsubmitted},
};

/// What an operation does to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It reads; other readers may run beside it.
    Read,
    /// It writes, or moves: nobody else may use the range meanwhile.
    Write,
}

impl Access {
    pub(crate) fn conflicts_with(self, other: Self) -> bool {
        self == Self::Write || other == Self::Write && !crate::mutant!("core/reads-conflict-with-writes")
    }
}

/// Claims on buffers for work about to be enqueued. Until they are committed, whoever wants to use the ranges in conflict
/// waits; so nothing slow may happen in between. Dropped without a commit they are withdrawn: the work did not happen.
///
/// [`submit`](crate::submit) does all this for one operation of one queue. Work of several operations, or of host threads,
/// claims everything it will touch, commits the fence of its own timeline, and then enqueues in that order.
pub struct Claims<'a> {
    held: SmallVec<[Claimed<'a>; 4]>,
    after: Dependencies,
}

/// A buffer, and the claim in its table.
pub(crate) type Claimed<'a> = (&'a RawBuffer, Ticket);

impl<'a> Claims<'a> {
    /// Claims each range, and collects the fences of the work that must be over before. Sorts `uses`.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) where a host view is open on a range in conflict; nothing is claimed
    /// then. Two conflicting uses of one range in one call would wait for each other forever: the caller excludes them.
    pub fn of(uses: &mut [(&'a RawBuffer, Access)]) -> Result<Self> {
        let mut claims = Self::beginning_with(None);
        claims.add(uses, None)?;
        Ok(claims)
    }

    /// What is claimed already, if anything.
    pub(crate) fn beginning_with(claimed: Option<Claimed<'a>>) -> Self {
        Self { held: claimed.into_iter().collect(), after: Dependencies::new() }
    }

    /// As [`of`](Self::of), beside what is claimed already, none of which may come later in the order of identities. For
    /// work that will be enqueued on the timeline `own`, where one is given: earlier work of it is not in
    /// [`after`](Self::after), since a queue does what is enqueued later after it.
    pub(crate) fn add(
        &mut self,
        uses: &mut [(&'a RawBuffer, Access)],
        own: Option<&Arc<dyn Timeline>>,
    ) -> Result<()> {
        // This order is what keeps two submitters from waiting for each other in a circle.
        if !crate::mutant!("core/claims-in-order") {
            uses.sort_by_key(|(buffer, _)| place_in_order(buffer));
        }
        for (buffer, access) in uses.iter() {
            let ticket = buffer.hazards().claim(buffer.range(), *access, own, &mut self.after)?;
            self.held.push((buffer, ticket));
        }
        Ok(())
    }

    /// As [`of`](Self::of), but never blocks: where another thread is between its claim and its commit on a range in
    /// conflict, that is answered, and nothing is claimed.
    ///
    /// # Errors
    /// [`Unsubmitted::Blocked`]; [`Unsubmitted::Refused`] as for `of`.
    pub fn try_of(uses: &mut [(&'a RawBuffer, Access)]) -> Result<Self, Unsubmitted> {
        uses.sort_by_key(|(buffer, _)| place_in_order(buffer));
        let mut claims = Self::beginning_with(None);
        for (buffer, access) in uses.iter() {
            match buffer.hazards().try_claim(buffer.range(), *access, None, &mut claims.after)? {
                Some(ticket) => claims.held.push((buffer, ticket)),
                None => return Err(Obstacle::claim(buffer, *access).into()),
            }
        }
        Ok(claims)
    }

    /// The fences that the work must come after.
    #[must_use]
    pub fn after(&self) -> &[Fence] {
        &self.after
    }

    /// Waits on the host for what the queue cannot wait for by itself, and forgets what is over.
    pub fn wait_where_a_queue_cannot<Q: Queue + ?Sized>(&mut self, queue: &Q) {
        for fence in &self.after {
            if !queue.can_wait_for(fence) {
                // A failed predecessor is reported by its own transfer; the bytes are at rest either way.
                let _over = fence.wait();
            }
        }
        self.after.retain(|fence| !fence.is_known_done());
    }

    /// What of the work before this is not over and is not for the queue to wait for. Forgets what is over.
    ///
    /// # Errors
    /// [`Unsubmitted::Blocked`] by those fences.
    pub(crate) fn leave_to_queue(&mut self, for_queue: impl Fn(&Fence) -> bool) -> Result<(), Unsubmitted> {
        self.after.retain(|fence| !fence.is_known_done());
        let for_host = self.after.iter().filter(|fence| !for_queue(fence));
        // Allocates only where there is something.
        let open: Vec<Fence> = for_host.filter(|fence| !fence.is_over()).cloned().collect();
        if !open.is_empty() {
            return Err(Obstacle::fences(open).into());
        }
        // Over also where a timeline does not say so of itself.
        self.after.retain(|fence| for_queue(fence));
        Ok(())
    }

    /// The work is over when `fence` is. Later uses of the ranges come after it, and the memory lives until then.
    ///
    /// # Safety
    /// * `fence` is over only when the work on the claimed ranges is over and everything in [`after`](Self::after) is:
    ///   what the ranges were used for before is forgotten in favour of it.
    pub unsafe fn commit(mut self, fence: &Fence) {
        let mut woken = Woken::default();
        for (buffer, ticket) in &self.held {
            buffer.is_used_behind(fence);
            buffer.hazards().commit(*ticket, fence, &mut woken);
        }
        // They are no claims any more.
        self.held.clear();
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        if crate::mutant!("core/claims-withdrawn") {
            return;
        }
        let mut woken = Woken::default();
        for (buffer, ticket) in &self.held {
            buffer.hazards().withdraw(*ticket, &mut woken);
        }
    }
}

impl fmt::Debug for Claims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims").field("held", &self.held.len()).field("after", &self.after).finish()
    }
}

fn place_in_order(buffer: &RawBuffer) -> (BufferId, usize) {
    (buffer.id(), buffer.offset())
}

/// The two claims of a copy that nothing is before but work of its own timeline: all that most small copies need, and a
/// small copy notices what [`Claims`] has to keep room for. Dropped without a commit they are withdrawn.
pub(crate) struct CopyClaims<'a> {
    first: Claimed<'a>,
    second: Claimed<'a>,
}

/// What is claimed of a copy, and what is yet to be.
pub(crate) type Begun<'a> = (Option<Claimed<'a>>, SmallVec<[(&'a RawBuffer, Access); 2]>);

impl<'a> CopyClaims<'a> {
    /// Claims both ranges, in the order of identities. Where anything else was done or is being done with either, the rest is
    /// left to [`Claims`].
    #[inline]
    pub(crate) fn of(
        src: &'a RawBuffer,
        dst: &'a RawBuffer,
        own: &Arc<dyn Timeline>,
    ) -> Result<Self, Begun<'a>> {
        let (mut first, mut second) = ((src, Access::Read), (dst, Access::Write));
        if place_in_order(src) > place_in_order(dst) {
            std::mem::swap(&mut first, &mut second);
        }
        let claim = |(buffer, access): (&'a RawBuffer, Access)| {
            buffer.hazards().claim_after_own(buffer.range(), access, own).map(|ticket| (buffer, ticket))
        };
        let Some(claimed) = claim(first) else { return Err((None, SmallVec::from([first, second]))) };
        match claim(second) {
            Some(second) => Ok(Self { first: claimed, second }),
            None => Err((Some(claimed), smallvec![second])),
        }
    }

    /// As [`Claims::commit`].
    ///
    /// # Safety
    /// * As there.
    #[inline]
    pub(crate) unsafe fn commit(self, fence: &Fence) {
        let mut woken = Woken::default();
        for (buffer, ticket) in [self.first, self.second] {
            buffer.is_used_behind(fence);
            buffer.hazards().commit(ticket, fence, &mut woken);
        }
        std::mem::forget(self);
        woken.wake();
    }
}

impl Drop for CopyClaims<'_> {
    #[cold]
    fn drop(&mut self) {
        let mut woken = Woken::default();
        for (buffer, ticket) in [self.first, self.second] {
            buffer.hazards().withdraw(ticket, &mut woken);
        }
    }
}
