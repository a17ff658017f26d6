//! Short uploads that the calling thread waits for: it copies the bytes into a staging buffer, and enqueues the one copy from there. The
//! bookkeeping of a staged transfer would take about as long as the bytes.

use std::{sync::Arc, time::Instant};

use smallvec::{SmallVec, smallvec};
use transload_core::{
    Claims, Error, ErrorKind, Fence, Operation, Queue, RawBuffer, Result, Submitted, Timing, TransferId,
};

use super::{
    StagingRing,
    chunk_copy::{Stores, host_copy, host_pointer},
    ring::StagingBuffer,
    wait_mode::has_room,
};
use crate::{
    built_in::SHORT_PART,
    report_events::{self, ChunkEvent},
    stats::lost::name_lost_device,
};

/// A staging buffer for one upload. Returned to the ring when dropped.
pub(crate) struct ShortUpload {
    ring: Arc<StagingRing>,
    /// `Some` until it is dropped.
    buffer: Option<StagingBuffer>,
    /// Enqueued copies that are not known to be complete.
    copies: SmallVec<[Fence; 1]>,
}

impl ShortUpload {
    /// Returns whether an upload of so many bytes may be one.
    pub(crate) fn fits(bytes: usize) -> bool {
        bytes <= SHORT_PART
    }

    /// Returns one for a claimed upload, unless that would have to wait for something.
    pub(crate) fn new(
        ring: Option<Arc<StagingRing>>,
        queue: &dyn Queue,
        claims: &Claims<'_>,
        after: &[Fence],
    ) -> Option<Self> {
        let are_over = |fences: &[Fence]| fences.iter().all(Fence::is_known_complete);
        let is_ready = are_over(claims.after()) && are_over(after) && has_room(queue)
            || transload_core::mutant!("transfer/short-upload-waits");
        let ring = ring.filter(|_| is_ready)?;
        let buffer = ring.take_free_buffer()?;
        Some(Self { ring, buffer: Some(buffer), copies: SmallVec::new() })
    }

    /// Submits the upload, commits its fence, and waits for it.
    ///
    /// # Errors
    /// The queue's; nothing is enqueued then.
    pub(crate) fn run(
        mut self,
        queue: &dyn Queue,
        (src, dst): (&RawBuffer, &RawBuffer),
        claims: Claims<'_>,
        (id, timing): (Option<TransferId>, Timing),
    ) -> Result<Submitted> {
        // A drain waits for it, and then finds the buffer in the ring.
        let counted = (!transload_core::mutant!("transfer/short-upload-counted"))
            .then(|| self.ring.executor().helping());
        let outcome = self.run_counted(queue, (src, dst), claims, (id, timing));
        drop(self);
        drop(counted);
        outcome
    }

    fn run_counted(
        &mut self,
        queue: &dyn Queue,
        (src, dst): (&RawBuffer, &RawBuffer),
        mut claims: Claims<'_>,
        (id, timing): (Option<TransferId>, Timing),
    ) -> Result<Submitted> {
        let begun = (timing == Timing::Measured).then(Instant::now);
        let tell = |event| {
            if let Some(id) = id {
                report_events::chunk(id, 0, src.len(), event);
            }
        };
        let name_lost = |error| name_lost_device(queue.device(), error);
        let copied = self.copy(queue, src, dst).map_err(name_lost);
        let fence = match copied {
            Ok(fence) => fence,
            Err(error) => {
                // SAFETY: it is the queue's error.
                unsafe { claims.fail(&error) };
                drop(claims);
                tell(ChunkEvent::Failed(&error));
                return Err(error);
            }
        };
        let end = claims.inherit(fence.clone());
        // SAFETY: the host's copy is over, all earlier work is complete, and the fence completes after the device's copy.
        unsafe { claims.commit(&end) };
        let outcome = end.wait();
        // Failed or not, the copy is over.
        self.copies.clear();
        tell(ChunkEvent::Started);
        tell(outcome.as_ref().map_or_else(ChunkEvent::Failed, |()| ChunkEvent::Completed));
        Ok(match begun {
            // The queue's own time is not all. A failure is told by the fence.
            Some(begun) if outcome.is_ok() => Submitted::Complete(Some(begun.elapsed())),
            _ => Submitted::Until(end),
        })
    }

    /// Copies into the staging buffer, and enqueues the copy from there.
    fn copy(&mut self, queue: &dyn Queue, src: &RawBuffer, dst: &RawBuffer) -> Result<Fence> {
        let returned = || Error::new(ErrorKind::Interrupted, "the staging buffer was returned");
        let (staged, address) = self.buffer.as_ref().ok_or_else(returned)?.slice(src.len())?;
        host_copy(host_pointer(src, 0)?, address.as_ptr(), src.len(), Stores::Streaming);
        let operation = Operation::Copy { src: &staged, dst };
        // SAFETY: the destination is claimed until its fence is committed; the staging buffer is this upload's until the copy is over; the
        // lengths are equal.
        let fence = unsafe { queue.enqueue(&operation, &[], Timing::Off) }?;
        self.copies = smallvec![fence.clone()];
        Ok(fence)
    }
}

impl Drop for ShortUpload {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.ring.recover(buffer, &self.copies);
        }
    }
}
