//! Chunks that several threads copy between the host's bytes and the staging buffer, a part at a time, while the thread that has the
//! chunk makes all driver calls for it: calls of several threads hold each other up for longer than they take.

use std::{
    future::poll_fn,
    hint,
    ops::Range,
    sync::{Arc, Weak, atomic::Ordering},
    task::{Poll, Waker},
    thread,
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{Error, ErrorKind, Operation, QueueLease, Result, Timing};
use transload_executor::yield_now;

use super::{
    StagedTransfer, StagingTuning,
    chunk_copy::{ChunkCopy, LONG, Stores, host_copy, host_pointer},
    fresh::fault_in,
    pieces::Piece,
    queues::Queues,
    ring::CAPACITY,
    wait_mode::{WaitMode, room},
};
use crate::{
    built_in::{CACHED_PART, CHUNKED, PART, SHORT_PART, STREAMED_FOR_ENGINES, STREAMED_FOR_KERNELS},
    stats::lost::name_lost_device,
};

/// Parts after which a task lets others run: each time may wake a worker.
const PARTS_AT_ONCE: usize = 16;
/// How often a thread looks whether others have copied their parts before it waits, which is about as long as a part takes.
const SPINS: usize = 256;

/// A chunk that threads copy.
pub(super) struct Parts {
    /// Of the transfer's bytes.
    chunk: Range<usize>,
    /// Address of the staging buffer.
    staged: *mut u8,
    /// Bytes of a part.
    part: usize,
    /// Whether the pages of the host's side are there.
    is_faulted_in: bool,
    state: Mutex<State>,
}

// SAFETY: the staging buffer stays that of the chunk until no thread copies a part, and the threads copy different ones.
unsafe impl Send for Parts {}
// SAFETY: as above.
unsafe impl Sync for Parts {}

/// Positions are those in the chunk.
struct State {
    /// Bytes from the beginning that may be copied.
    ready: usize,
    /// Where the next part begins.
    next: usize,
    /// Where the parts begin that threads copy now.
    copying: SmallVec<[usize; 16]>,
    outcome: Result<()>,
    /// Of the task that has the chunk: woken when the copy of a part ends.
    waiting: Option<Waker>,
}

impl State {
    /// Returns how many bytes from the beginning are copied.
    fn copied(&self) -> Result<usize> {
        let first = self.copying.iter().min().filter(|_| !transload_core::mutant!("transfer/parts-in-copy"));
        self.outcome.clone().map(|()| first.copied().unwrap_or(self.next))
    }
}

impl Parts {
    fn new(
        chunk: Range<usize>,
        staged: *mut u8,
        part: usize,
        (ready, is_faulted_in): (usize, bool),
    ) -> Arc<Self> {
        let state = State { ready, next: 0, copying: SmallVec::new(), outcome: Ok(()), waiting: None };
        Arc::new(Self { chunk, staged, part, is_faulted_in, state: Mutex::new(state) })
    }

    fn take(self: &Arc<Self>) -> Option<Part> {
        let mut state = self.state.lock();
        let (start, end) = (state.next, (state.next + self.part).min(state.ready));
        if start >= end {
            return None;
        }
        state.next = end;
        state.copying.push(start);
        drop(state);
        Some(Part { of: Arc::clone(self), range: start..end, outcome: None })
    }

    /// Allows to copy the bytes up to `ready`.
    pub(super) fn publish(&self, ready: usize) {
        self.state.lock().ready = ready;
    }

    /// Returns how many bytes from the beginning are copied.
    ///
    /// # Errors
    /// The first one of a part.
    pub(super) fn copied(&self) -> Result<usize> {
        self.state.lock().copied()
    }

    /// Waits for more than `copied` bytes to be copied, or an error. Other tasks run meanwhile: a thread may stand still in a part while
    /// the system reads a page.
    async fn more_than(&self, copied: usize) {
        let is_over = |state: &State| !state.copied().is_ok_and(|now| now <= copied);
        for _ in 0..SPINS {
            hint::spin_loop();
            if is_over(&self.state.lock()) {
                return;
            }
        }
        self.wait_until(is_over).await;
    }

    /// Waits for a condition that the end of a part's copy may bring about.
    async fn wait_until(&self, mut is_met: impl FnMut(&State) -> bool) {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if is_met(&state) {
                return Poll::Ready(());
            }
            state.waiting = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Allows no more parts to be taken. Returns whether none is being copied.
    fn close(&self) -> bool {
        let mut state = self.state.lock();
        state.ready = 0;
        state.copying.is_empty() || transload_core::mutant!("transfer/parts-end")
    }
}

/// A part that a thread copies.
struct Part {
    of: Arc<Parts>,
    /// In the chunk.
    range: Range<usize>,
    /// `None` until it is copied.
    outcome: Option<Result<()>>,
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        state.copying.retain(|start| *start != self.range.start);
        if state.outcome.is_ok() {
            let ended_early = "a thread ended while it copied a part of a chunk";
            let interrupted = || Err(Error::new(ErrorKind::Interrupted, ended_early));
            state.outcome = self.outcome.take().unwrap_or_else(interrupted);
        }
        let waiting = state.waiting.take().filter(|_| !transload_core::mutant!("transfer/parts-wake"));
        drop(state);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }
}

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
        let part = if self.is_into_caches() { CACHED_PART } else { part_of(self.pieces.bytes()) };
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

    /// Copies a part on the calling thread. Returns whether there was one.
    pub(super) fn copy_part(&self) -> bool {
        let taken = self.parts.lock().iter().find_map(Parts::take);
        let Some(mut part) = taken else { return false };
        let Range { start, end } = part.range;
        let first = part.of.chunk.start;
        // SAFETY: the part lies within the staging buffer.
        let staged = unsafe { part.of.staged.add(start) };
        part.outcome = Some(self.copy_on_host(&(first + start..first + end), staged, part.of.is_faulted_in));
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
                let stores = match self.is_into_caches() {
                    true => Stores::Cached,
                    false if self.in_place => Stores::StreamingFrom(STREAMED_FOR_KERNELS),
                    false => Stores::StreamingFrom(STREAMED_FOR_ENGINES),
                };
                host_copy(host_pointer(src, range.start)?, staged, bytes, stores);
            } else {
                let dst = host_pointer(dst, range.start)?;
                let was_absent = !is_faulted_in && bytes >= LONG && fault_in(dst, bytes);
                host_copy(staged, dst, bytes, self.user_stores(was_absent));
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
        self.transfer.spawn_helpers(bytes);
        while enqueued < bytes {
            let is_any_left = self.transfer.copy_part();
            let copied = parts.copied()?;
            if copied == bytes || copied - enqueued >= self.transfer.segment(self.range.start + enqueued) {
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
        let parts = self.begin_parts(0, false)?;
        self.transfer.timeline.mark_written();
        let transfer = Arc::clone(&self.transfer);
        for (segment, copies) in transfer.segments(self.range.clone()).zip(self.segment_ends.clone()) {
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
            parts.wait_until(|state| state.copying.is_empty()).await;
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
    use std::ptr;

    use super::*;

    fn parts(ready: usize) -> Arc<Parts> {
        Parts::new(0..4 * PART, ptr::null_mut(), PART, (ready, false))
    }

    fn end(part: Option<Part>) -> Range<usize> {
        let mut part = part.unwrap_or_else(|| unreachable!("no part is left"));
        part.outcome = Some(Ok(()));
        part.range.clone()
    }

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

    #[test]
    fn bytes_count_as_copied_up_to_the_first_part_being_copied() {
        let parts = parts(2 * PART + 5);
        let (first, second) = (parts.take(), parts.take());
        assert_eq!(end(second), PART..2 * PART);
        assert_eq!(parts.copied().ok(), Some(0));
        assert_eq!(end(first), 0..PART);
        assert_eq!(parts.copied().ok(), Some(2 * PART));
        assert_eq!(end(parts.take()), 2 * PART..2 * PART + 5);
        assert!(parts.take().is_none());
        parts.publish(3 * PART);
        assert_eq!(end(parts.take()), 2 * PART + 5..3 * PART);
        assert_eq!(parts.copied().ok(), Some(3 * PART));
    }

    #[test]
    fn ended_chunk_has_no_parts_left_and_waits_for_those_being_copied() {
        let parts = parts(4 * PART);
        let part = parts.take();
        assert!(!parts.close());
        assert!(parts.take().is_none());
        end(part);
        assert!(parts.close());
    }

    #[test]
    fn thread_that_ends_within_a_part_fails_the_chunk() {
        let parts = parts(4 * PART);
        drop(parts.take());
        assert_eq!(parts.copied().map_err(|error| error.kind()), Err(ErrorKind::Interrupted));
    }
}
