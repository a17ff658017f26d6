//! A chunk whose bytes several threads copy, a part at a time.

use std::{
    future::poll_fn,
    hint,
    ops::Range,
    sync::Arc,
    task::{Poll, Waker},
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{Error, ErrorKind, Result};

/// How often a thread looks whether others have copied their parts before it waits, which is about as long as a part takes.
const SPINS: usize = 256;

/// A chunk that threads copy.
pub(super) struct Parts {
    /// Of the transfer's bytes.
    pub(super) chunk: Range<usize>,
    /// Address of the staging buffer.
    pub(super) staged: *mut u8,
    /// Bytes of a part.
    part: usize,
    /// Where the first part would have begun, if they were counted from before the chunk: so many bytes before it.
    before: usize,
    /// Whether the pages of the host's side are there, or are faulted in before their parts arrive.
    pub(super) is_faulted_in: bool,
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
    /// Where the next pages are that nobody faults in yet, of a destination that was never touched.
    absent: Option<usize>,
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
    pub(super) fn new(
        chunk: Range<usize>,
        staged: *mut u8,
        (part, before): (usize, usize),
        (ready, is_faulted_in): (usize, bool),
    ) -> Arc<Self> {
        let (copying, outcome) = (SmallVec::new(), Ok(()));
        let state = State { ready, next: 0, absent: None, copying, outcome, waiting: None };
        Arc::new(Self { chunk, staged, part, before, is_faulted_in, state: Mutex::new(state) })
    }

    /// Returns where the part ends in which a byte is.
    fn end_of(&self, byte: usize) -> usize {
        let into = (byte + self.before) % self.part;
        byte + self.part - into
    }

    pub(super) fn take(self: &Arc<Self>) -> Option<Part> {
        let mut state = self.state.lock();
        let (start, end) = (state.next, self.end_of(state.next).min(state.ready));
        if start >= end {
            return None;
        }
        state.next = end;
        state.copying.push(start);
        drop(state);
        Some(Part { of: Arc::clone(self), range: start..end, outcome: None })
    }

    /// Lets threads fault in the pages of parts that have not arrived.
    pub(super) fn fault_in_ahead(&self) {
        self.state.lock().absent = Some(0);
    }

    /// Returns the next pages to fault in, of the transfer's bytes.
    pub(super) fn take_absent(&self) -> Option<Range<usize>> {
        let mut state = self.state.lock();
        // Not those of parts that are copied already.
        let start = state.absent?.max(state.next);
        let end = self.end_of(start).min(self.chunk.len());
        state.absent = (start < end).then_some(end);
        (start < end).then(|| self.chunk.start + start..self.chunk.start + end)
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
    pub(super) async fn more_than(&self, copied: usize) {
        let is_over = |state: &State| !state.copied().is_ok_and(|now| now <= copied);
        for _ in 0..SPINS {
            hint::spin_loop();
            if is_over(&self.state.lock()) {
                return;
            }
        }
        self.wait_until(is_over).await;
    }

    /// Waits until no thread copies a part.
    pub(super) async fn until_none_is_copied(&self) {
        self.wait_until(|state| state.copying.is_empty()).await;
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
    pub(super) fn close(&self) -> bool {
        let mut state = self.state.lock();
        state.ready = 0;
        state.copying.is_empty() || transload_core::mutant!("transfer/parts-end")
    }
}

/// A part that a thread copies.
pub(super) struct Part {
    pub(super) of: Arc<Parts>,
    /// In the chunk.
    pub(super) range: Range<usize>,
    /// `None` until it is copied.
    pub(super) outcome: Option<Result<()>>,
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

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::{
        built_in::PART,
        staging::{fresh::STEP, ring::CAPACITY},
    };

    fn parts(ready: usize) -> Arc<Parts> {
        Parts::new(0..4 * PART, ptr::null_mut(), (PART, 0), (ready, false))
    }

    fn end(part: Option<Part>) -> Range<usize> {
        let mut part = part.unwrap_or_else(|| unreachable!("no part is left"));
        part.outcome = Some(Ok(()));
        part.range.clone()
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
    fn parts_of_memory_that_was_never_touched_are_whole_huge_pages_and_so_is_what_is_faulted_in() {
        // The second chunk of memory that begins 5 bytes into a huge page.
        let (first, chunk) = (STEP - 5, CAPACITY..2 * CAPACITY);
        let parts = Parts::new(chunk.clone(), ptr::null_mut(), (STEP, 5), (0, true));
        assert_eq!(parts.take_absent(), None);
        parts.fault_in_ahead();
        assert_eq!(parts.take_absent(), Some(CAPACITY..CAPACITY + first));
        parts.publish(CAPACITY - 1);
        assert_eq!(end(parts.take()), 0..first);
        assert_eq!(end(parts.take()), first..first + STEP);
        // The pages of parts that were copied are there.
        assert_eq!(parts.take_absent(), Some(CAPACITY + first + STEP..2 * CAPACITY));
        assert_eq!(parts.take_absent(), None);
        assert_eq!(end(parts.take()), first + STEP..CAPACITY - 1);
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
