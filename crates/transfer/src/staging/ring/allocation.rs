//! Allocates and releases staging buffers.

use std::{
    cell::Cell,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::MutexGuard;
use transload_core::{Error, ErrorKind, PinnedCache, Result, StreamPriority};

use super::{CAPACITY, STAGING_BUFFER, Source, StagingBuffer, StagingRing, State};
use crate::report_events;

/// Dispatches after a shortage of pinned memory during which no further buffer is allocated.
const BACKOFF_TURNS: u32 = 256;
/// Transfers after a shortage that do not try to allocate the first buffer, but use another method.
const SKIPPED_TRANSFERS: u32 = 16;
/// How long a thread that needs staging buffers, or is short of pinned memory, waits for those being allocated.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a thread allocates for a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Allocating {
    /// The buffer without which no transfer can be staged.
    First,
    /// One more: worth no other ring's buffers.
    Another,
}

thread_local! {
    static ALLOCATING: Cell<Option<Allocating>> = const { Cell::new(None) };
}

/// Notes what this thread allocates, until dropped: then what it allocated before.
struct AllocatingGuard(Option<Allocating>);

impl AllocatingGuard {
    fn enter(what: Allocating) -> Self {
        Self(ALLOCATING.replace(Some(what)))
    }
}

impl Drop for AllocatingGuard {
    fn drop(&mut self) {
        ALLOCATING.set(self.0);
    }
}

/// Returns whether this thread is within an allocation, during which the backend emitted an event and its subscriber came
/// back here. Such a thread must not wait for buffers being allocated: one of them may be its own.
fn is_nested() -> bool {
    ALLOCATING.get().is_some()
}

pub(super) fn unavailable(why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("no staging buffer: {why}"))
}

impl StagingRing {
    /// Returns whether a transfer can be staged without allocating a buffer first.
    pub(crate) fn has_buffer(&self) -> bool {
        self.state.lock().has_buffer()
    }

    /// Allocates the first buffer if there is none.
    ///
    /// # Errors
    /// The backend's. Unless `insist`, some transfers after a shortage get its error without a further try.
    /// [`ErrorKind::OutOfMemory`] within an allocation that leaves no room for another.
    pub(super) fn allocate_first(self: &Arc<Self>, insist: bool) -> Result<()> {
        let mut state = self.state.lock();
        self.wait_for_others(&mut state, |state| !state.has_buffer());
        if state.has_buffer() {
            return Ok(());
        }
        if state.allocated >= self.most_now(&state) {
            let text = "no staging buffer: the only ones are being allocated";
            return Err(Error::new(ErrorKind::OutOfMemory, text));
        }
        if !insist
            && state.skips > 0
            && let Some(error) = state.shortage.clone()
        {
            state.skips -= 1;
            return Err(error);
        }
        let what = state.count_allocations(1);
        drop(state);
        self.allocate_now(what)
    }

    /// Allocates all buffers that the ring may have, as far as pinned memory suffices.
    ///
    /// # Errors
    /// The backend's, unless there is too little pinned memory.
    pub(crate) fn fill(self: &Arc<Self>) -> Result<()> {
        self.wait_for_others(&mut self.state.lock(), |_| true);
        loop {
            let mut state = self.state.lock();
            if state.allocated >= self.most_now(&state) {
                return Ok(());
            }
            let what = state.count_allocations(1);
            drop(state);
            match self.allocate_now(what) {
                Err(error) if error.kind() == ErrorKind::OutOfMemory => return Ok(()),
                outcome => outcome?,
            }
        }
    }

    /// Waits while buffers are being allocated and `needs` some, but not for long: the call that allocates one may be queued after the one of
    /// this thread, if the system refuses another thread.
    fn wait_for_others(&self, state: &mut MutexGuard<'_, State>, needs: impl Fn(&State) -> bool) {
        let end = Instant::now() + PATIENCE;
        while needs(state) && state.allocating > 0 && !is_nested() {
            if self.allocated.wait_until(state, end).timed_out() {
                return;
            }
        }
    }

    /// Allocates a buffer, already counted, on a blocking thread.
    pub(super) fn spawn_allocation(self: &Arc<Self>, what: Allocating) {
        let mut making = PendingBuffer::new(self);
        drop(self.executor.spawn_blocking(&self.pinning, move || making.allocate(what)));
    }

    /// Allocates a buffer, already counted, on the calling thread.
    fn allocate_now(self: &Arc<Self>, what: Allocating) -> Result<()> {
        let mut making = PendingBuffer::new(self);
        making.allocate(what);
        making.outcome.as_ref().map(|_| ()).map_err(Error::clone)
    }

    fn allocate(&self, what: Allocating) -> Result<StagingBuffer> {
        let none = || unavailable("this ring has none");
        let (backend, device, kind) = self.source.as_ref().ok_or_else(none)?.memory();
        let _attached = backend.attach_thread();
        let _noted = AllocatingGuard::enter(what);
        StagingBuffer::new(backend.allocate(device, kind, CAPACITY)?)
    }

    /// Frees the unused buffers, but the last one only if no transfer needs it. Returns how many.
    pub(crate) fn release(&self) -> usize {
        let mut state = self.state.lock();
        let keep = usize::from(state.holds > 0);
        let freed = state.take_free(keep, usize::MAX);
        drop(state);
        freed.len()
    }

    /// Returns the most buffers that the ring may have now, at least one.
    pub(super) fn most_now(&self, state: &State) -> usize {
        let Some(limit) = self.limit else { return self.most };
        let room = limit.saturating_sub(state.reserved) / STAGING_BUFFER;
        usize::try_from(room).unwrap_or(usize::MAX).clamp(1, self.most)
    }
}

impl PinnedCache for StagingRing {
    fn release_unused(&self) -> u64 {
        let allocating = ALLOCATING.get();
        if allocating == Some(Allocating::Another) {
            return 0;
        }
        if allocating.is_none() {
            self.wait_for_others(&mut self.state.lock(), |_| true);
        }
        self.release() as u64 * STAGING_BUFFER
    }

    fn unused_bytes(&self) -> u64 {
        let mut state = self.state.lock();
        let free = state.free.len();
        std::mem::replace(&mut state.least_free, free).min(free) as u64 * STAGING_BUFFER
    }
}

impl State {
    pub(super) fn has_buffer(&self) -> bool {
        self.allocated > self.allocating
    }

    /// Counts buffers as being allocated. Returns what they are.
    pub(super) fn count_allocations(&mut self, buffers: usize) -> Allocating {
        let what = if self.allocated == 0 { Allocating::First } else { Allocating::Another };
        self.allocated += buffers;
        self.allocating += buffers;
        what
    }

    /// Returns how many free buffers can be taken out if one is left.
    pub(super) fn removable(&self) -> usize {
        let existing = self.allocated - self.allocating;
        self.free.len().min(existing.saturating_sub(1))
    }

    /// Takes up to `most` free buffers out of the ring, which has `keep` left, for the caller to drop outside the lock.
    pub(super) fn take_free(&mut self, keep: usize, most: usize) -> Vec<StagingBuffer> {
        let existing = self.allocated - self.allocating;
        let count = self.free.len().min(existing.saturating_sub(keep)).min(most);
        self.allocated -= count;
        self.free.split_off(self.free.len() - count)
    }

    /// Returns how many buffers of what to allocate, and counts them as being allocated.
    pub(super) fn reserve_allocations(&mut self, most: usize) -> (usize, Allocating) {
        let room = most.saturating_sub(self.allocated);
        if room == 0 || (self.backoff > 0 && self.allocated > 0) {
            self.backoff = self.backoff.saturating_sub(1);
            return (0, Allocating::Another);
        }
        let mut wanted = 0;
        for transfer in self.transfers.iter().flatten() {
            wanted += transfer.buffers_wanted();
            if wanted >= room + self.allocating {
                break;
            }
        }
        // At most doubles the buffers: a driver serialises pinning, and the first chunks would wait for all.
        let at_once = (self.allocated - self.allocating).max(1);
        let to_allocate = wanted.min(at_once).saturating_sub(self.allocating).min(room);
        (to_allocate, self.count_allocations(to_allocate))
    }
}

/// A buffer being allocated. Its drop adds it to the ring or reports the error, even after a panic. Events come last: a
/// subscriber may stage a copy.
struct PendingBuffer {
    ring: Arc<StagingRing>,
    outcome: Result<StagingBuffer>,
    begun: Instant,
}

impl PendingBuffer {
    fn new(ring: &Arc<StagingRing>) -> Self {
        let outcome = Err(unavailable("nothing could make it"));
        Self { ring: Arc::clone(ring), outcome, begun: Instant::now() }
    }

    fn allocate(&mut self, what: Allocating) {
        self.begun = Instant::now();
        self.outcome = self.ring.allocate(what);
    }
}

impl Drop for PendingBuffer {
    fn drop(&mut self) {
        let outcome = mem::replace(&mut self.outcome, Err(unavailable("it was taken")));
        let ring = &self.ring;
        let error = match outcome {
            Ok(made) => {
                let (elapsed, mut buffers) = (self.begun.elapsed(), 0);
                let _none = ring.dispatch(None, |state| {
                    state.allocating -= 1;
                    state.free.push(made);
                    buffers = state.allocated;
                    ring.allocated.notify_all();
                });
                if let Some(Source { lane, .. }) = &ring.source {
                    report_events::ring_grown(*lane, buffers, elapsed);
                }
                return;
            }
            Err(error) => error,
        };
        let mut state = ring.state.lock();
        state.allocating -= 1;
        state.allocated -= 1;
        // Go on with the existing buffers, if any.
        state.backoff = BACKOFF_TURNS;
        let allocated = state.allocated;
        let waiting = if allocated == 0 {
            (state.skips, state.shortage) = (SKIPPED_TRANSFERS, Some(error.clone()));
            mem::take(&mut state.transfers)
        } else {
            Default::default()
        };
        drop(state);
        ring.allocated.notify_all();
        for transfer in waiting.into_iter().flatten() {
            let error = error.clone();
            let failing = async move { transfer.fail(error).await };
            let _always = ring.executor.spawn_detached(StreamPriority::Normal, failing);
        }
        if let Some(Source { lane, .. }) = &ring.source {
            report_events::ring_limited(*lane, allocated, ring.most, &error);
        }
    }
}
