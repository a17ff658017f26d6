//! Chunks that several threads copy between the host's bytes and the staging buffer, a part at a time, while the thread that has the
//! chunk makes all driver calls for it: calls of several threads hold each other up for longer than they take.

use std::{
    ops::Range,
    sync::{Arc, Weak, atomic::Ordering},
    thread,
};

use transload_core::{Error, ErrorKind, Operation, QueueLease, Result, Timing};
use transload_executor::yield_now;

use super::{
    StagedTransfer, StagingTuning,
    chunk_copy::{ChunkCopy, LONG, Stores, host_copy, host_pointer},
    fresh::{STEP, fault_in},
    pieces::Piece,
    queues::Queues,
    ring::CAPACITY,
    shared_chunk::Parts,
    wait_mode::{WaitMode, room},
};
use crate::{
    built_in::{CACHED_PART, CHUNKED, PART, SEGMENT, SHORT_PART, SHORT_SEGMENT, SHORT_SEGMENTS},
    stats::lost::name_lost_device,
};

/// Parts after which a task lets others run: each time may wake a worker.
const PARTS_AT_ONCE: usize = 16;

/// A task that copies parts. Uncounted when dropped. If it runs after the end, it has kept neither the queue nor the memory.
struct Helper(Weak<StagedTransfer>);

impl Helper {
    /// Copies some parts. Returns whether there may be more.
    fn copy(&self) -> bool {
        let Some(transfer) = self.0.upgrade() else { return false };
        let parts =
            if transfer.is_into_caches() { PARTS_AT_ONCE * PART / CACHED_PART } else { PARTS_AT_ONCE };
        (0..parts).all(|_| transfer.copy_part())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(transfer) = self.0.upgrade() {
            transfer.helpers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl StagedTransfer {
    /// Makes a chunk one whose parts any thread may copy, so far up to a number of bytes; with whether the pages of the host's side are there.
    ///
    /// # Safety
    /// * `staged` is the address of the staging buffer of `chunk`, which stays the chunk's until [`end_parts`](Self::end_parts) returns
    ///   true.
    pub(super) unsafe fn begin_parts(
        &self,
        chunk: Range<usize>,
        staged: *mut u8,
        begun: (usize, bool),
    ) -> Arc<Parts> {
        let part = match self.fresh {
            Some(start) => (STEP, (start + chunk.start) % STEP),
            None if self.is_into_caches() => (CACHED_PART, 0),
            None => (part_of(self.pieces.bytes()), 0),
        };
        let parts = Parts::new(chunk, staged, part, begun);
        self.parts.lock().push(Arc::clone(&parts));
        parts
    }

    /// Ends a chunk of parts. Returns whether no thread copies one any more.
    pub(super) fn end_parts(&self, parts: &Arc<Parts>) -> bool {
        self.parts.lock().retain(|other| !Arc::ptr_eq(other, parts));
        parts.close()
    }

    /// Ends a chunk of parts while others may be copying one each.
    #[cold]
    pub(super) fn end_parts_now(&self, parts: &Arc<Parts>) {
        while !self.end_parts(parts) {
            thread::yield_now();
        }
    }

    /// Copies a part on the calling thread, or faults in the pages of one. Returns whether there was one.
    pub(super) fn copy_part(&self) -> bool {
        let taken = self.parts.lock().iter().find_map(Parts::take);
        let Some(mut part) = taken else { return self.fault_in_part() };
        let Range { start, end } = part.range;
        let first = part.of.chunk.start;
        // SAFETY: the part lies within the staging buffer.
        let staged = unsafe { part.of.staged.add(start) };
        part.outcome = Some(self.copy_on_host(&(first + start..first + end), staged, part.of.is_faulted_in));
        true
    }

    /// Faults in the pages of a part that has not arrived. Returns whether there were any.
    fn fault_in_part(&self) -> bool {
        if self.fresh.is_none() {
            return false;
        }
        let absent = self.parts.lock().iter().find_map(|parts| parts.take_absent());
        let Some(range) = absent else { return false };
        for Piece { dst, range, .. } in self.pieces.within(&range) {
            // The copy tells the error.
            let _was_absent = host_pointer(dst, range.start).is_ok_and(|dst| fault_in(dst, range.len()));
        }
        true
    }

    /// Has tasks copy up to `bytes` bytes of parts with the calling thread.
    pub(super) fn spawn_helpers(self: &Arc<Self>, bytes: usize) {
        let most = helpers_for(&self.tuning, self.pieces.bytes(), bytes);
        // In one step: several chunks may begin at once.
        let missing = most.saturating_sub(self.helpers.fetch_max(most, Ordering::Relaxed));
        if missing == 0 {
            return;
        }
        let helper = |_| {
            let helper = Helper(Arc::downgrade(self));
            async move {
                while helper.copy() {
                    yield_now().await;
                }
            }
        };
        // Cannot fail: the executor had a thread when the transfer was started.
        let _always = self.ring.executor().spawn_all(self.priority, (0..missing).map(helper));
    }

    /// Returns whether an upload is so long that it is stored into the caches.
    pub(super) fn is_into_caches(&self) -> bool {
        self.is_upload() && self.pieces.bytes() as u64 >= self.tuning.upload_cached_from
    }

    /// Returns the bytes that one driver call copies, at least if more follow.
    pub(super) fn segment(&self) -> usize {
        let (bytes, is_upload) = (self.pieces.bytes(), self.is_upload());
        if self.is_into_caches() {
            return CAPACITY;
        }
        let usual = if is_upload { self.tuning.upload_segment } else { self.tuning.download_segment };
        let usual = usize::try_from(usual).unwrap_or(SEGMENT);
        if !is_short(bytes) {
            return usual;
        }
        let most = if is_upload { usual } else { SEGMENT };
        most.min((bytes / SHORT_SEGMENTS).next_multiple_of(SHORT_PART).max(SHORT_SEGMENT))
    }

    /// Returns the ranges of a chunk that one driver call each copies from the device.
    pub(super) fn segments(&self, chunk: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        // Whole parts of memory that was never touched.
        let (segment, before) = match self.fresh {
            Some(start) => (STEP, (start + chunk.start) % STEP),
            None => (self.segment(), 0),
        };
        let bytes = chunk.len();
        let starts = (0..bytes + before).step_by(segment);
        starts.map(move |start| start.saturating_sub(before)..(start + segment - before).min(bytes))
    }

    /// Copies a range of a list between its pieces and `staged`, where the range is.
    ///
    /// # Errors
    /// `Unsupported` if the host's side has no address.
    fn copy_on_host(&self, range: &Range<usize>, staged: *mut u8, is_faulted_in: bool) -> Result<()> {
        for Piece { src, dst, range, at } in self.pieces.within(range) {
            // SAFETY: the piece lies within the range.
            let staged = unsafe { staged.add(at) };
            let bytes = range.len();
            if self.is_upload() {
                let stores = if self.is_into_caches() { Stores::Cached } else { Stores::Streaming };
                host_copy(host_pointer(src, range.start)?, staged, bytes, stores);
            } else {
                let dst = host_pointer(dst, range.start)?;
                let was_absent = !is_faulted_in && bytes >= LONG && fault_in(dst, bytes);
                host_copy(staged, dst, bytes, self.user_stores(was_absent || self.fresh.is_some()));
            }
        }
        Ok(())
    }
}

impl ChunkCopy {
    /// Copies the chunk into the staging buffer with other threads, and enqueues each segment when it is there.
    pub(super) async fn upload_parts(&mut self, queues: &Queues, waits: WaitMode<'_>) -> Result<()> {
        let bytes = self.range.len();
        let (parts, mut enqueued) = (self.begin_parts(bytes, false)?, 0);
        let segment = self.transfer.segment();
        self.transfer.spawn_helpers(bytes);
        while enqueued < bytes {
            let is_any_left = self.transfer.copy_part();
            let copied = parts.copied()?;
            if copied == bytes || copied - enqueued >= segment {
                let queue = queues.next();
                room(&**queue, waits).await;
                self.enqueue_upload(queue, enqueued..copied)?;
                enqueued = copied;
            } else if !is_any_left {
                parts.more_than(copied).await;
            }
        }
        Ok(())
    }

    /// Copies each segment out of the staging buffer with other threads, when it has arrived there.
    pub(super) async fn scatter_parts(&mut self, waits: WaitMode<'_>) -> Result<()> {
        let parts = self.begin_parts(0, self.transfer.fresh.is_some())?;
        self.transfer.timeline.mark_written();
        if self.transfer.fresh.is_some() {
            // While the device copies.
            parts.fault_in_ahead();
            self.transfer.spawn_helpers(self.range.len());
        }
        for (segment, copies) in self.transfer.segments(&self.range).zip(self.segment_ends.clone()) {
            // The last one: the others are complete then.
            let Some(copy) = copies.checked_sub(1).and_then(|last| self.copies.get(last)) else { continue };
            while !copy.is_complete() && self.transfer.copy_part() {}
            let arrived = waits.fence(copy).await;
            arrived.map_err(|error| name_lost_device(copy.timeline().device(), error))?;
            parts.publish(segment.end);
            self.transfer.spawn_helpers(segment.len());
        }
        self.copy_left(&parts).await
    }

    /// Copies a chunk that is in the staging buffer, and whose pages are there, with other threads.
    pub(super) async fn scatter_arrived(&mut self) -> Result<()> {
        let bytes = self.range.len();
        let parts = self.begin_parts(bytes, true)?;
        self.transfer.timeline.mark_written();
        self.transfer.spawn_helpers(bytes);
        self.copy_left(&parts).await
    }

    /// Copies the parts that are left, and waits for those of other threads.
    async fn copy_left(&mut self, parts: &Parts) -> Result<()> {
        while self.transfer.copy_part() {}
        loop {
            match parts.copied()? {
                copied if copied == self.range.len() => return Ok(()),
                copied => parts.more_than(copied).await,
            }
        }
    }

    /// Lets any thread copy parts of the chunk's first `ready` bytes. `is_faulted_in`: the pages of the host's side are there.
    fn begin_parts(&mut self, ready: usize, is_faulted_in: bool) -> Result<Arc<Parts>> {
        let (_, address) = self.staged()?;
        let begun = (ready, is_faulted_in);
        // SAFETY: the chunk has the buffer until it is finished or dropped, and ends its parts before either.
        let parts = unsafe { self.transfer.begin_parts(self.range.clone(), address, begun) };
        Ok(Arc::clone(self.parts.insert(parts)))
    }

    /// Waits for the threads that still copy a part of the chunk, if any.
    pub(super) async fn end_parts(&mut self) {
        if let Some(parts) = self.parts.clone()
            && !self.transfer.end_parts(&parts)
        {
            parts.until_none_is_copied().await;
        }
        self.parts = None;
    }

    /// Enqueues the copy of a range of the chunk between the staging buffer and the device's scratch memory.
    pub(super) fn enqueue_part(&mut self, queue: &QueueLease, range: Range<usize>) -> Result<()> {
        let transfer = Arc::clone(&self.transfer);
        let missing = || Error::new(ErrorKind::Interrupted, "the list has no scratch memory");
        let through = transfer.through_device.as_ref().ok_or_else(missing)?;
        let (staged, _) = self.staged()?;
        let staged = staged.slice(range.clone())?;
        let part = through.scratch.slice(self.range.start + range.start..self.range.start + range.end)?;
        let (src, dst) = if transfer.is_upload() { (&staged, &part) } else { (&part, &staged) };
        let _attached = transfer.attach();
        let scattered = transfer.enqueue_part(through, range.len(), |after| {
            // SAFETY: the staging buffer is this chunk's until `copies` are over, and the scratch memory is claimed until the transfer's
            // end, which comes after that; the lengths are equal.
            let copied = unsafe { queue.enqueue(&Operation::Copy { src, dst }, after, Timing::Off) };
            let copied = copied.map_err(|error| name_lost_device(queue.device(), error))?;
            self.copies.push(copied.clone());
            Ok(copied)
        })?;
        self.copies.extend(scattered);
        Ok(())
    }
}

/// Returns how many tasks help a thread that copies `ready` of `bytes` bytes.
pub(crate) fn helpers_for(tuning: &StagingTuning, bytes: usize, ready: usize) -> usize {
    tuning.threads(bytes).min(ready.div_ceil(part_of(bytes))).saturating_sub(1)
}

/// Returns whether a transfer of so many bytes fits a staging buffer.
pub(super) fn is_short(bytes: usize) -> bool {
    bytes <= CAPACITY
}

/// Returns whether the chunks of a download of so many bytes are copied in parts. Of a longer one there are as many as threads, but for the
/// last ones, and so there are of several `among` others, for none of which a thread waits.
pub(super) fn is_in_parts(bytes: usize, among: bool) -> bool {
    is_short(bytes) || bytes < CHUNKED && !among
}

/// Returns the bytes of a part of a transfer of so many bytes.
fn part_of(bytes: usize) -> usize {
    if is_short(bytes) { SHORT_PART } else { PART }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downloads_among_others_go_in_chunks_unless_they_fit_one() {
        for (bytes, alone, among) in [
            (CAPACITY, true, true),
            (CAPACITY + 1, true, false),
            (CHUNKED - 1, true, false),
            (CHUNKED, false, false),
        ] {
            assert_eq!((is_in_parts(bytes, false), is_in_parts(bytes, true)), (alone, among), "{bytes}");
        }
    }
}
