//! How claims end: with the fence of the work, at once, or with a failure.

use super::{Claims, DelayedWakes, WriteMode, follows_other_device, same_buffer};
use crate::{
    Access, Error, ErrorKind, Fence, Operation, Queue, Result, Timing, TransferPath,
    hazard::{Claimed, EarlierWork, Retained, WakeList, mark},
    queue::source::{SourceList, Sources},
};

impl Claims<'_> {
    /// Returns the fence of the claimed work, extended to report failures of the work that wrote what the
    /// claimed work reads: see [`Fence::wait`]. Use it as the fence for callers; [`commit`](Self::commit)
    /// extends its own.
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

    /// Ends the claims of an operation that a queue returned this error for. If it [is partial](Error::is_partial), the bytes that the operation
    /// writes are marked as damaged; not if a device is lost.
    ///
    /// # Safety
    /// * Unless the device is lost, a part that was done is complete, and so is everything in [`after`](Self::after), which came before it.
    #[cold]
    pub unsafe fn fail(&mut self, error: &Error) {
        // Work of other devices that a lost one waited for may go on: later users wait for it as before.
        if !error.is_partial() || error.kind() == ErrorKind::DeviceLost {
            return;
        }
        let (fence, mut wake_list) = (mark::failed(error), WakeList::default());
        let retained = Retained { damage: self.write_mode == WriteMode::Keep, cross_device: false };
        for group in self.held.chunk_by(same_buffer) {
            let Some(Claimed { buffer, .. }) = group.first() else { continue };
            buffer.hazards().commit(group, &fence, retained, &mut wake_list);
        }
        self.held.clear();
        wake_list.wake();
    }

    /// Commits the claims: the work is complete when `fence` is. Later uses of the ranges wait for it, and
    /// the memory lives until then.
    ///
    /// # Safety
    /// * `fence` completes only after the work on the claimed ranges and everything in
    ///   [`after`](Self::after): it replaces the earlier uses of the ranges.
    #[inline]
    pub unsafe fn commit(mut self, fence: &Fence) {
        self.commit_all(fence);
    }

    /// Like [`commit`](Self::commit), but tasks that wait for these ranges are woken when `wakes` is dropped: a task that is woken on this thread
    /// may wait for the fence, and this thread has still to submit its work.
    ///
    /// # Safety
    /// * Those of [`commit`](Self::commit).
    pub unsafe fn commit_quietly(mut self, fence: &Fence, wakes: &mut DelayedWakes) {
        self.commit_to(fence, &mut wakes.0);
    }

    /// Enqueues the claimed operation after [`after`](Self::after), and commits its fence. By reference,
    /// since moving the large claims would slow down a short copy.
    #[inline]
    pub(crate) fn enqueue<Q: Queue + ?Sized>(
        &mut self,
        queue: &Q,
        operation: &Operation<'_>,
        timing: Timing,
    ) -> Result<Fence> {
        // SAFETY: the claims block every conflicting use until the fence is committed; from then on the fence
        // does, and keeps the memory alive.
        let enqueued = unsafe { queue.enqueue(operation, self.after(), timing) };
        let fence = enqueued.inspect_err(|error| {
            // A prefetch changes no byte.
            if !matches!(operation, Operation::Prefetch { .. } | Operation::PrefetchToNode { .. }) {
                // SAFETY: it is the queue's error.
                unsafe { self.fail(error) };
            }
        })?;
        let fence = self.inherit(fence);
        operation.record_prefetch_target();
        // A queue's fence completes after the operation, which waits for `after`; fences removed from that
        // were complete.
        self.commit_all(&fence);
        Ok(fence)
    }

    #[inline]
    fn commit_all(&mut self, fence: &Fence) {
        let mut wake_list = WakeList::default();
        self.commit_to(fence, &mut wake_list);
        wake_list.wake();
    }

    /// Who waits is woken when the list is dropped.
    #[inline(always)]
    fn commit_to(&mut self, fence: &Fence, wake_list: &mut WakeList) {
        let inherited;
        let fence = match &self.earlier {
            Some(EarlierWork { sources, .. }) if !sources.is_empty() && fence.sources().is_none() => {
                inherited = self.inherit_sources(sources, fence.clone());
                &inherited
            }
            _ => fence,
        };
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
            buffer.hazards().commit(group, fence, retained, wake_list);
        }
        // Committed, so no claims any more.
        self.held.clear();
    }

    /// Returns whether no earlier work is in flight or has an unknown outcome.
    #[inline]
    pub(crate) fn have_no_predecessors(&self) -> bool {
        self.earlier.as_ref().is_none_or(|earlier| earlier.after.is_empty() && earlier.sources.is_empty())
    }

    /// Ends the claims of work that is complete and had no predecessors: later uses of the ranges need not
    /// wait for it.
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
