//! The right to use ranges of buffers, held from before work is enqueued until its fence is known.

use std::{fmt, ops::Range, sync::Arc};

use smallvec::SmallVec;

use crate::{
    BufferId, Fence, Operation, Queue, RawBuffer, Result, Timeline, Timing, TransferPath,
    hazard::{Attempt, Blocker, ClaimRequest, Dependencies, EarlierWork, Retained, Ticket, WakeList},
    queue::source::{SourceList, Sources},
    submit::unblocked::{TrySubmitError, Turns, Unblocked},
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
    /// Present once any was looked for: it is large.
    earlier: Option<EarlierWork>,
    write_mode: WriteMode,
}

/// What happens to bytes that are claimed for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// All are written, and none is read.
    Replace,
    /// They may be read before.
    Update,
    /// Some stay as they are.
    Keep,
}

impl WriteMode {
    #[inline]
    fn inherits(self) -> bool {
        self == Self::Keep || self == Self::Update && !crate::mutant!("core/update-inherits")
    }
}

/// A range of a buffer, and the claim in its table once it is made. Uses that touch or overlap are one.
pub(crate) struct Claimed<'a> {
    pub(crate) buffer: &'a RawBuffer,
    pub(crate) range: Range<usize>,
    pub(crate) access: Access,
    pub(crate) ticket: Option<Ticket>,
}

impl<'a> Claims<'a> {
    /// Claims each range, and collects the fences of the work that must be over before. Sorts `uses`.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) where a host view is open on a range in conflict,
    /// [`SourceFailed`](crate::ErrorKind::SourceFailed) where bytes to be read may be damaged; nothing is claimed then. Two conflicting uses of one range in one call would wait for each other forever: the caller excludes them.
    pub fn acquire(uses: &mut [(&'a RawBuffer, Access)]) -> Result<Self> {
        let mut claims = Self::none(WriteMode::Replace);
        claims.add(uses, None)?;
        Ok(claims)
    }

    /// Like [`acquire`](Self::acquire), for work that may read what it is to write, as a kernel may: it inherits the failure also of work
    /// that wrote those bytes and is in flight.
    ///
    /// # Errors
    /// As for `of`.
    pub fn updating(uses: &mut [(&'a RawBuffer, Access)]) -> Result<Self> {
        let mut claims = Self::none(WriteMode::Update);
        claims.add(uses, None)?;
        Ok(claims)
    }

    /// No claims yet.
    #[inline]
    pub(crate) fn none(write_mode: WriteMode) -> Self {
        Self { held: SmallVec::new(), earlier: None, write_mode }
    }

    /// Like [`acquire`](Self::acquire), for work that will be enqueued on the timeline `own`, where one is given: earlier work of it
    /// is not in [`after`](Self::after), since a queue does what is enqueued later after it. There are no claims before.
    #[inline]
    pub(crate) fn add(
        &mut self,
        uses: &mut [(&'a RawBuffer, Access)],
        own: Option<&Arc<dyn Timeline>>,
    ) -> Result<()> {
        match self.attempt(uses, own, None) {
            Ok(()) => Ok(()),
            Err(TrySubmitError::Failed(error)) => Err(error),
            Err(TrySubmitError::WouldBlock(_)) => self.wait_in_turn(uses, own),
        }
    }

    #[cold]
    fn wait_in_turn(
        &mut self,
        uses: &mut [(&'a RawBuffer, Access)],
        own: Option<&Arc<dyn Timeline>>,
    ) -> Result<()> {
        let turns = Turns::default();
        loop {
            match self.attempt(uses, own, Some(&turns)) {
                Ok(()) => return Ok(()),
                Err(TrySubmitError::Failed(error)) => return Err(error),
                Err(TrySubmitError::WouldBlock(obstacle)) => obstacle.block(&turns),
            }
        }
    }

    /// Claims all ranges, or none where one is blocked for those who hold `turns`.
    #[inline]
    pub(crate) fn attempt(
        &mut self,
        uses: &mut [(&'a RawBuffer, Access)],
        own: Option<&Arc<dyn Timeline>>,
        turns: Option<&Turns>,
    ) -> Result<(), TrySubmitError> {
        // The uses of one buffer become neighbours, by offset.
        match uses {
            [first, second] if sort_key(first.0) <= sort_key(second.0) => {}
            [first, second] => std::mem::swap(first, second),
            _ => uses.sort_by_key(|(buffer, _)| sort_key(buffer)),
        }
        for (buffer, access) in uses.iter() {
            let range = buffer.range();
            match self.held.last_mut() {
                Some(last)
                    if last.buffer.id() == buffer.id()
                        && range.start <= last.range.end
                        && last.access == *access =>
                {
                    last.range.end = last.range.end.max(range.end);
                }
                _ => self.held.push(Claimed { buffer, range, access: *access, ticket: None }),
            }
        }
        let mut request = ClaimRequest { own, turn: None, inherits: self.write_mode.inherits() };
        for group in self.held.chunk_by_mut(same_buffer) {
            let Some(Claimed { buffer, .. }) = group.first() else { continue };
            request.turn = turns.and_then(|turns| turns.of(buffer));
            match buffer.hazards().claim(group, &request, &mut self.earlier) {
                Ok(Attempt::Held(())) => {}
                Ok(Attempt::Blocked(before)) => return Err(self.blocked(before, turns)),
                Err(error) => {
                    self.withdraw();
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Withdraws what was claimed before a range that is blocked.
    #[cold]
    fn blocked(&mut self, before: Blocker, turns: Option<&Turns>) -> TrySubmitError {
        let blocked = self.held.iter().find(|one| one.ticket.is_none());
        let obstacle = match blocked {
            Some(one) => Unblocked::before(one.buffer, one.range.clone(), one.access, before, turns),
            None => Unblocked::fences(Vec::new()),
        };
        self.withdraw();
        obstacle.into()
    }

    #[cold]
    fn withdraw(&mut self) {
        let mut wake_list = WakeList::default();
        for one in self.held.drain(..) {
            if let Some(ticket) = one.ticket {
                one.buffer.hazards().withdraw(&one.range, ticket, &mut wake_list);
            }
        }
        self.earlier = None;
    }

    /// Like [`acquire`](Self::acquire), but never blocks: where another thread is between its claim and its commit on a range in
    /// conflict, that is answered, and nothing is claimed. Who tries again passes the same `turns`.
    ///
    /// # Errors
    /// [`TrySubmitError::WouldBlock`]; [`TrySubmitError::Failed`] as for `of`.
    pub fn try_acquire(uses: &mut [(&'a RawBuffer, Access)], turns: &Turns) -> Result<Self, TrySubmitError> {
        let mut claims = Self::none(WriteMode::Replace);
        claims.attempt(uses, None, Some(turns))?;
        Ok(claims)
    }

    /// Makes the one claim a loan: conflicting work is refused from then on, and does not wait.
    pub(crate) fn into_loan(mut self) -> (Option<Ticket>, Dependencies) {
        let one = self.held.pop();
        let lend = |one: Claimed<'_>| Some(one.buffer.hazards().lend(&one.range, one.ticket?));
        (one.and_then(lend), self.earlier.take().unwrap_or_default().after)
    }

    /// The fences that the work must come after: of each timeline the last.
    #[must_use]
    #[inline]
    pub fn after(&self) -> &[Fence] {
        self.earlier.as_ref().map_or(&[], |earlier| &earlier.after)
    }

    /// Waits on the host for what the queue cannot wait for by itself, and forgets what is over.
    pub fn wait_for_foreign_fences<Q: Queue + ?Sized>(&mut self, queue: &Q) {
        let Some(EarlierWork { after, .. }) = &mut self.earlier else { return };
        for fence in after.iter() {
            if !queue.can_wait_for(fence) {
                // A failed predecessor is reported by its own transfer; the bytes are at rest either way.
                let _over = fence.wait();
            }
        }
        after.retain(|fence| !fence.is_known_complete());
    }

    /// What of the work before this is not over and is not for the queue to wait for. Forgets what is over.
    ///
    /// # Errors
    /// [`TrySubmitError::WouldBlock`] by those fences.
    pub(crate) fn require_queue_can_wait(
        &mut self,
        for_queue: impl Fn(&Fence) -> bool,
    ) -> Result<(), TrySubmitError> {
        let Some(EarlierWork { after, .. }) = &mut self.earlier else { return Ok(()) };
        after.retain(|fence| !fence.is_known_complete());
        let for_host = after.iter().filter(|fence| !for_queue(fence));
        // Allocates only where there is something.
        let open: Vec<Fence> = for_host.filter(|fence| !fence.is_complete()).cloned().collect();
        if !open.is_empty() {
            return Err(Unblocked::fences(open).into());
        }
        // Over also where a timeline does not say so of itself.
        after.retain(|fence| for_queue(fence));
        Ok(())
    }

    /// Returns the fence of the claimed work, so that it also tells the failure of work that wrote what the claimed work
    /// reads: see [`Fence::wait`]. It is the one to hand out; [`commit`](Self::commit) does likewise by itself.
    #[must_use]
    #[inline]
    pub fn inherit(&self, fence: Fence) -> Fence {
        match &self.earlier {
            Some(EarlierWork { sources, .. }) if !sources.is_empty() => self.inherit_sources(sources, fence),
            _ => fence,
        }
    }

    #[cold]
    fn inherit_sources(&self, sources: &SourceList, fence: Fence) -> Fence {
        let place =
            |access: Access| self.held.iter().find(|one| one.access == access).map(|one| one.buffer.place());
        let path =
            place(Access::Read).zip(place(Access::Write)).map(|(src, dst)| TransferPath::new(src, dst));
        fence.with_sources(Sources::new(sources.clone(), path))
    }

    /// The work is over when `fence` is. Later uses of the ranges come after it, and the memory lives until then.
    ///
    /// # Safety
    /// * `fence` is over only when the work on the claimed ranges is over and everything in [`after`](Self::after) is:
    ///   what the ranges were used for before is forgotten in favour of it.
    #[inline]
    pub unsafe fn commit(mut self, fence: &Fence) {
        self.commit_all(fence);
    }

    /// Enqueues the claimed operation behind [`after`](Self::after), and commits its fence. Not by value: the claims are many
    /// words, and a short copy notices that.
    #[inline]
    pub(crate) fn enqueue<Q: Queue + ?Sized>(
        &mut self,
        queue: &Q,
        operation: &Operation<'_>,
        timing: Timing,
    ) -> Result<Fence> {
        // SAFETY: the claims keep every conflicting use away until the fence is committed, and the fence keeps them away and
        // the memory alive from then on.
        let fence = self.inherit(unsafe { queue.enqueue(operation, self.after(), timing) }?);
        operation.record_prefetch_target();
        // A queue's fence is over after the operation, which it puts behind `after`; what was taken out of that was over.
        self.commit_all(&fence);
        Ok(fence)
    }

    #[inline]
    fn commit_all(&mut self, fence: &Fence) {
        let inherited;
        let fence = match &self.earlier {
            Some(EarlierWork { sources, .. }) if !sources.is_empty() && fence.sources().is_none() => {
                inherited = self.inherit_sources(sources, fence.clone());
                &inherited
            }
            _ => fence,
        };
        let mut wake_list = WakeList::default();
        let retained = Retained {
            damage: self.write_mode == WriteMode::Keep && !crate::mutant!("core/prefetch-keeps-marks"),
            cross_device: self
                .earlier
                .as_ref()
                .is_some_and(|earlier| follows_other_device(&earlier.after, fence)),
        };
        for group in self.held.chunk_by(same_buffer) {
            let Some(Claimed { buffer, .. }) = group.first() else { continue };
            buffer.record_use_by_fence(fence);
            let claims = group.iter().filter_map(|one| Some((&one.range, one.ticket.as_ref()?)));
            buffer.hazards().commit(claims, fence, retained, &mut wake_list);
        }
        // They are no claims any more.
        self.held.clear();
        wake_list.wake();
    }
}

impl Claims<'_> {
    /// Returns whether there is no earlier work to wait for, nor any of which it is not known how it ended.
    #[inline]
    pub(crate) fn have_no_predecessors(&self) -> bool {
        self.earlier.as_ref().is_none_or(|earlier| earlier.after.is_empty() && earlier.sources.is_empty())
    }

    /// Ends the claims of work that is complete already, and followed nothing: later uses of the ranges need not wait for it.
    #[inline]
    pub(crate) fn complete(&mut self) {
        let mut wake_list = WakeList::default();
        for one in &self.held {
            if let Some(ticket) = one.ticket {
                one.buffer.hazards().complete(&one.range, ticket, &mut wake_list);
            }
        }
        self.held.clear();
        wake_list.wake();
    }
}

impl Drop for Claims<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.held.is_empty() && !crate::mutant!("core/claims-withdrawn") {
            self.withdraw();
        }
    }
}

impl fmt::Debug for Claims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims").field("held", &self.held.len()).field("after", &self.after()).finish()
    }
}

#[inline]
fn sort_key(buffer: &RawBuffer) -> (BufferId, usize) {
    (buffer.id(), buffer.offset())
}

#[inline]
fn same_buffer(one: &Claimed<'_>, other: &Claimed<'_>) -> bool {
    one.buffer.id() == other.buffer.id()
}

/// Whether any of the work that `fence` comes after is of another device. With its device lost every fence counts as over, though
/// that work goes on; those that can fail by themselves are of no device that can be lost.
#[inline]
pub(crate) fn follows_other_device(after: &[Fence], fence: &Fence) -> bool {
    let device = |fence: &Fence| fence.timeline().device();
    !after.is_empty() && !fence.can_fail() && after.iter().any(|one| device(one) != device(fence))
}
