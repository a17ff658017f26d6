//! Claims: exclusive or shared access to ranges of buffers, from before work is enqueued until its fence is
//! known.

mod ends;

use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use crate::{
    BlockList, BufferId, Fence, MemoryKind, Operation, Queue, RawBuffer, Result, Timeline,
    hazard::{Access, Attempt, Blocker, ClaimRequest, Claimed, Dependencies, EarlierWork, Ticket, WakeList},
    submit::{
        batch::ranges_of,
        unblocked::{TrySubmitError, Turns, Unblocked},
    },
};

/// Claims on buffers for work about to be enqueued. Until they are committed, conflicting users wait, so do
/// nothing slow in between. Claims dropped without a commit are withdrawn: the work did not happen.
///
/// [`submit`](crate::submit) does all this for one operation of one queue. For several operations, or work of
/// host threads: claim everything that it will touch, commit the fence of its timeline, then enqueue in that
/// order.
pub struct Claims<'a> {
    held: SmallVec<[Claimed<'a>; 4]>,
    /// Present only if earlier work was searched for: it is large.
    earlier: Option<EarlierWork>,
    write_mode: WriteMode,
}

/// Wakes who waits for claims that [ended](Claims::end_quietly) or were [committed](Claims::commit_quietly) quietly, when it is dropped.
#[derive(Default)]
pub struct DelayedWakes(WakeList);

/// What happens to bytes that are claimed for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// All are written, none is read.
    Replace,
    /// They may be read before they are written.
    Update,
    /// Some may stay unchanged.
    Keep,
}

impl WriteMode {
    #[inline]
    fn inherits(self) -> bool {
        self == Self::Keep || self == Self::Update && !crate::mutant!("core/update-inherits")
    }
}

impl<'a> Claims<'a> {
    /// Claims each range, and collects the fences of the work that must complete first. Sorts `uses`. The
    /// caller must not pass two conflicting uses of one range: they would wait for each other forever.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if a host view is open on a conflicting range,
    /// [`SourceFailed`](crate::ErrorKind::SourceFailed) if bytes to be read may be damaged; nothing is
    /// claimed then.
    pub fn acquire(uses: &mut [(&'a RawBuffer, Access)]) -> Result<Self> {
        let mut claims = Self::none(WriteMode::Replace);
        claims.add(uses, None)?;
        Ok(claims)
    }

    /// Like [`acquire`](Self::acquire), for work that may read the bytes that it writes, as a kernel may: it
    /// also inherits failures of work in flight that writes these bytes.
    ///
    /// # Errors
    /// Like `acquire`.
    pub fn updating(uses: &mut [(&'a RawBuffer, Access)]) -> Result<Self> {
        let mut claims = Self::none(WriteMode::Update);
        claims.add(uses, None)?;
        Ok(claims)
    }

    /// Like [`acquire`](Self::acquire), for a batch: reads the first of each pair, and writes the second. Checks it like
    /// [`Operation::validate`] an [`Operation::CopyBatch`].
    ///
    /// # Errors
    /// Like `acquire` and `validate`.
    pub fn acquire_batch(pairs: &'a [(RawBuffer, RawBuffer)]) -> Result<Self> {
        let mut claims = Self::none(WriteMode::Replace);
        claims.add_ranges(|| ranges_of(pairs), None)?;
        Ok(claims)
    }

    /// Like [`acquire_batch`](Self::acquire_batch), for a list of blocks.
    ///
    /// # Errors
    /// Like `acquire`; [`ErrorKind::InvalidArgument`](crate::ErrorKind) if a destination pool is not writable, and
    /// [`ErrorKind::Unsupported`](crate::ErrorKind) if pools overlap: claim the pairs then.
    pub fn acquire_blocks(blocks: &'a BlockList) -> Result<Self> {
        let mut claims = Self::none(WriteMode::Replace);
        claims.add_ranges(|| blocks.ranges(), None)?;
        Ok(claims)
    }

    /// Like [`acquire_batch`](Self::acquire_batch), but never blocks, like [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// [`TrySubmitError::WouldBlock`]; [`TrySubmitError::Failed`] with the errors of `acquire_batch`.
    pub fn try_acquire_batch(
        pairs: &'a [(RawBuffer, RawBuffer)],
        turns: &Turns,
    ) -> Result<Self, TrySubmitError> {
        let mut claims = Self::none(WriteMode::Replace);
        claims.held = SmallVec::from_vec(ranges_of(pairs)?);
        claims.claim_held(None, Some(turns))?;
        Ok(claims)
    }

    /// Creates empty claims.
    #[inline]
    pub(crate) fn none(write_mode: WriteMode) -> Self {
        Self { held: SmallVec::new(), earlier: None, write_mode }
    }

    /// Like [`acquire`](Self::acquire), for work that will be enqueued on the timeline `own`, if given:
    /// earlier work of that timeline is not in [`after`](Self::after), since a queue runs in order. Call only
    /// on empty claims.
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

    /// Like [`add`](Self::add), for any operation, which is checked.
    #[inline(never)]
    pub(crate) fn add_checked(&mut self, operation: &Operation<'a>, own: &Arc<dyn Timeline>) -> Result<()> {
        match *operation {
            Operation::CopyBatch { pairs } | Operation::CopyBatchInPlace { pairs } => {
                self.add_ranges(|| ranges_of(pairs), Some(own))
            }
            _ => {
                operation.validate()?;
                self.add(&mut operation.uses(), Some(own))
            }
        }
    }

    /// Like [`add`](Self::add), for many ranges, in order.
    pub(crate) fn add_ranges(
        &mut self,
        ranges: impl Fn() -> Result<Vec<Claimed<'a>>>,
        own: Option<&Arc<dyn Timeline>>,
    ) -> Result<()> {
        let mut turns = None;
        loop {
            self.held = SmallVec::from_vec(ranges()?);
            match self.claim_held(own, turns.as_ref()) {
                Ok(()) => return Ok(()),
                Err(TrySubmitError::Failed(error)) => return Err(error),
                Err(TrySubmitError::WouldBlock(obstacle)) => match &turns {
                    Some(turns) => obstacle.block(turns),
                    None => turns = Some(Turns::default()),
                },
            }
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

    /// Claims all ranges, or none if one is blocked for the holder of `turns`.
    #[inline]
    pub(crate) fn attempt(
        &mut self,
        uses: &mut [(&'a RawBuffer, Access)],
        own: Option<&Arc<dyn Timeline>>,
        turns: Option<&Turns>,
    ) -> Result<(), TrySubmitError> {
        // Sort by buffer and offset.
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
                // It would part uses that touch, and what follows relies on ranges without common bytes.
                Some(last)
                    if range.is_empty()
                        && last.buffer.id() == buffer.id()
                        && !crate::mutant!("core/empty-uses-part-none") => {}
                _ => self.held.push(Claimed { buffer, range, access: *access, ticket: None }),
            }
        }
        self.claim_held(own, turns)
    }

    /// Claims all ranges that are listed, or none if one is blocked for the holder of `turns`.
    #[inline]
    fn claim_held(
        &mut self,
        own: Option<&Arc<dyn Timeline>>,
        turns: Option<&Turns>,
    ) -> Result<(), TrySubmitError> {
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

    /// Withdraws the claims made before the blocked range.
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

    /// Ends without work. Who waits for these ranges is woken when `wakes` is dropped, so that a task which is woken on this thread may
    /// use what the thread has still in its hands now.
    pub fn end_quietly(mut self, wakes: &mut DelayedWakes) {
        self.withdraw_to(&mut wakes.0);
    }

    #[cold]
    fn withdraw(&mut self) {
        self.withdraw_to(&mut WakeList::default());
    }

    /// Who waits is woken when the list is dropped.
    fn withdraw_to(&mut self, wake_list: &mut WakeList) {
        for group in self.held.chunk_by(same_buffer) {
            if let Some(Claimed { buffer, .. }) = group.first() {
                buffer.hazards().withdraw_all(group, wake_list);
            }
        }
        self.held.clear();
        self.earlier = None;
    }

    /// Like [`acquire`](Self::acquire), but never blocks: if another thread is between claim and commit on a
    /// conflicting range, returns that and claims nothing. Pass the same `turns` to each retry.
    ///
    /// # Errors
    /// [`TrySubmitError::WouldBlock`]; [`TrySubmitError::Failed`] with the errors of `acquire`.
    pub fn try_acquire(uses: &mut [(&'a RawBuffer, Access)], turns: &Turns) -> Result<Self, TrySubmitError> {
        let mut claims = Self::none(WriteMode::Replace);
        claims.attempt(uses, None, Some(turns))?;
        Ok(claims)
    }

    /// Turns the only claim into a loan: conflicting work then gets `Busy` and does not wait.
    pub(crate) fn into_loan(mut self) -> (Option<Ticket>, Dependencies) {
        let one = self.held.pop();
        let lend = |one: Claimed<'_>| Some(one.buffer.hazards().lend(&one.range, one.ticket?));
        (one.and_then(lend), self.earlier.take().unwrap_or_default().after)
    }

    /// Returns the fences that the work must wait for: the last of each timeline.
    #[must_use]
    #[inline]
    pub fn after(&self) -> &[Fence] {
        self.earlier.as_ref().map_or(&[], |earlier| &earlier.after)
    }

    /// Waits on the host for the fences that the queue cannot wait for, and for those of host work if the driver
    /// may use the claimed memory outside the stream's order. Removes complete fences.
    pub fn wait_for_foreign_fences<Q: Queue + ?Sized>(&mut self, queue: &Q) {
        let Some(EarlierWork { after, .. }) = &mut self.earlier else { return };
        for fence in after.iter() {
            if !can_order(queue, fence, || in_stream_order(self.held.iter().map(|one| one.buffer))) {
                // The failed transfer reports its error itself; either way its work is complete.
                let _over = fence.wait();
            }
        }
        after.retain(|fence| !fence.is_known_complete());
    }

    /// Adds fences that the work must wait for besides those of conflicting work.
    #[inline]
    pub fn wait_also(&mut self, fences: &[Fence]) {
        if !fences.is_empty() && !crate::mutant!("core/wait-also") {
            let after = &mut self.earlier.get_or_insert_default().after;
            fences.iter().for_each(|fence| after.add_fence(fence));
        }
    }

    /// Checks that the queue can wait for all earlier work. Removes complete fences.
    ///
    /// # Errors
    /// [`TrySubmitError::WouldBlock`] with the other fences.
    pub(crate) fn require_queue_can_wait(
        &mut self,
        for_queue: impl Fn(&Fence) -> bool,
    ) -> Result<(), TrySubmitError> {
        let Some(EarlierWork { after, .. }) = &mut self.earlier else { return Ok(()) };
        // Allocates only if there is any.
        let mut open: Vec<Fence> = Vec::new();
        // Asks once about each, since the answer may change.
        after.retain(|fence| {
            if fence.is_known_complete() {
                return false;
            }
            let is_for_queue = for_queue(fence);
            // One that is complete is removed, even if its timeline does not report it.
            if !is_for_queue && !fence.is_complete() {
                open.push((*fence).clone());
            }
            is_for_queue
        });
        if open.is_empty() { Ok(()) } else { Err(Unblocked::fences(open).into()) }
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

/// Returns whether an operation of the queue takes effect after the fence without a wait on the host.
#[inline]
pub(crate) fn is_ordered_by<Q: Queue + ?Sized>(
    queue: &Q,
    fence: &Fence,
    in_stream_order: impl FnOnce() -> bool,
) -> bool {
    // The queue last: it may reserve what the wait needs.
    (!fence.timeline().device().is_cpu() || queue.device().is_cpu() || in_stream_order())
        && queue.can_wait_for(fence)
}

/// Like [`is_ordered_by`], for a thread that may be blocked meanwhile.
#[inline]
pub(crate) fn can_order<Q: Queue + ?Sized>(
    queue: &Q,
    fence: &Fence,
    in_stream_order: impl FnOnce() -> bool,
) -> bool {
    let timeline = fence.timeline();
    if timeline.device().is_cpu() && timeline.ends_by_host_alone(fence.point()) {
        queue.prepare_waits();
    }
    is_ordered_by(queue, fence, in_stream_order)
}

/// Returns whether a device's operations use the buffers only in the order of their stream. The driver may copy
/// pageable memory during the call, and unified memory may not be accessible to the device while the host uses
/// it.
pub(crate) fn in_stream_order<'a>(mut buffers: impl Iterator<Item = &'a RawBuffer>) -> bool {
    buffers.all(|buffer| {
        matches!(buffer.place().kind, MemoryKind::Device | MemoryKind::Pinned | MemoryKind::Mapped)
    }) || crate::mutant!("core/pageable-waits-for-host-work")
}

#[inline]
fn sort_key(buffer: &RawBuffer) -> (BufferId, usize) {
    (buffer.id(), buffer.offset())
}

#[inline]
fn same_buffer(one: &Claimed<'_>, other: &Claimed<'_>) -> bool {
    one.buffer.id() == other.buffer.id()
}

/// Returns whether any work before `fence` is on another device. If the fence's device is lost, all its
/// fences count as complete, but that work goes on. Timelines whose work can fail on its own belong to the host,
/// which cannot be lost.
#[inline]
pub(crate) fn follows_other_device(after: &[Fence], fence: &Fence) -> bool {
    let device = |fence: &Fence| fence.timeline().device();
    let is_of_host =
        fence.timeline().can_fail() || crate::mutant!("core/inherited-failures") && fence.can_fail();
    !after.is_empty() && !is_of_host && after.iter().any(|one| device(one) != device(fence))
}
