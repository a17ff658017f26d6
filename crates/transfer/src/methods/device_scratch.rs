//! Scratch memory of devices, and lists that go through it: see `many/through_device.rs`.

use std::{iter, sync::Arc};

use dashmap::DashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{
    Backend, DeviceId, ErrorKind, Fence, HalfPairs, MemoryKind, Place, RawBuffer, Result, Submitted,
    events::report, full_until, require_complete,
};

use super::{
    Route, TransferRequest,
    device_chunks::{chunks_of, lengths},
    device_halves::{Halves, Queues},
};
use crate::{
    attempt::{Deferral, NotSubmitted},
    many::longest_gap,
};

/// Most bytes of a chunk of a cast, of a list that is staged in host memory too, and of a piece.
pub(crate) const CHUNK: usize = 32 << 20;
/// Most bytes of a list that are gathered or scattered by one launch. Beside other kernels a launch waits for a place as long as a copy engine
/// takes for 32 MiB: by 64, blocks of 24 KiB go both ways beside a GEMM loop at 94 GB/s instead of 78 (H200).
pub(super) const LAUNCH: usize = 64 << 20;
/// Scratch buffers of a direction: one is filled while others are emptied. With two of that length the blocks of 24 KiB go at 90 GB/s.
const BUFFERS: usize = 3;
/// Least bytes of a scratch buffer.
const LEAST: usize = 1 << 20;
/// Most bytes of one: room for the last piece of a chunk, since pieces are not cut.
pub(super) const MOST: usize = LAUNCH + LEAST;
/// Lists that allocate nothing after an allocation failed: on a full device it waits for others and releases caches.
const BACKOFF_LISTS: usize = 64;

/// The scratch memory of a manager's devices: at most [`BUFFERS`] of [`MOST`] bytes for each [`Purpose`]. It is kept for later
/// lists. Buffers that are too short for one are replaced; those still in use then are freed later, and are less than as much again.
#[derive(Debug, Default)]
pub(crate) struct DeviceScratch {
    /// Locked only to take buffers out, or put them back.
    of: DashMap<Purpose, Arc<Mutex<Buffers>>>,
}

/// What scratch buffers are for: lists of one kind are mostly alike, and no queue waits for the executor's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Purpose {
    pub(crate) device: DeviceId,
    pub(crate) is_upload: bool,
    /// Whether the list is staged in host memory too.
    pub(crate) is_staged: bool,
}

/// Those of one purpose.
#[derive(Debug, Default)]
struct Buffers {
    /// In the order of their last uses.
    buffers: Vec<Scratch>,
    /// Number of others, which threads have that allocate them, or submit lists.
    taken: usize,
    /// Lists left that allocate nothing.
    skips: usize,
    /// Those of the last list that waited for no other work. Lists that use the buffers in turn wait for each other: on queues of their
    /// own, blocks of 24 KiB go both ways at 35 GB/s beside a GEMM loop, on the same ones at 85 (H200).
    queues: Option<Arc<Queues>>,
}

#[derive(Debug)]
struct Scratch {
    memory: RawBuffer,
    /// The end of the last list that uses it.
    end: Option<Fence>,
    /// Whether that list waits for other work, which may be the caller's to begin.
    is_held_up: bool,
}

/// Whether a list can take a buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Idle,
    /// After a list that ends without the caller.
    InUse,
    /// Only after work for which the list has no reason to wait.
    HeldUp,
}

impl Scratch {
    fn state(&self) -> State {
        match &self.end {
            Some(end) if !end.is_known_complete() && self.is_held_up => State::HeldUp,
            Some(end) if !end.is_known_complete() => State::InUse,
            _ => State::Idle,
        }
    }
}

impl Buffers {
    /// Returns how many buffers of `bytes` bytes a list of `count` chunks is to allocate, which count as taken, and those that are shorter.
    fn plan(&mut self, count: usize, bytes: usize) -> (usize, Vec<Scratch>) {
        let short = self.buffers.extract_if(.., |scratch| scratch.memory.len() < bytes).collect();
        let idle = self.buffers.iter().filter(|scratch| scratch.state() == State::Idle).count();
        let missing = count.min(BUFFERS).saturating_sub(idle).min(self.room());
        if missing > 0 && self.skips > 0 {
            self.skips -= 1;
            return (0, short);
        }
        self.taken += missing;
        (missing, short)
    }

    /// Returns how many more there may be.
    fn room(&self) -> usize {
        BUFFERS.saturating_sub(self.buffers.len() + self.taken)
    }

    /// Takes up to `count` buffers of at least `bytes` bytes. A list that is held up takes idle ones, and leaves one to other lists.
    fn take(&mut self, count: usize, bytes: usize, is_held_up: bool) -> Vec<Scratch> {
        // Another thread may have put back a shorter one.
        let state = |scratch: &Scratch| {
            if scratch.memory.len() < bytes { State::HeldUp } else { scratch.state() }
        };
        let room = self.room();
        // Each is checked once: it may become idle meanwhile.
        let mut by_state: Vec<_> = self.buffers.drain(..).map(|scratch| (state(&scratch), scratch)).collect();
        by_state.sort_by_key(|(state, _)| *state);
        let up_to = |most: State| by_state.iter().filter(|(state, _)| *state <= most).count();
        let (idle, usable) = (up_to(State::Idle), up_to(State::InUse));
        let most = if is_held_up { idle.min((usable + room).saturating_sub(1)) } else { usable };
        let rest = by_state.split_off(count.min(most));
        self.buffers.extend(rest.into_iter().map(|(_, scratch)| scratch));
        self.taken += by_state.len();
        by_state.into_iter().map(|(_, scratch)| scratch).collect()
    }

    /// Puts back what was taken.
    fn put(&mut self, taken: Vec<Scratch>) {
        self.taken = self.taken.saturating_sub(taken.len());
        self.buffers.extend(taken);
    }
}

/// Buffers that a list may take.
pub(crate) struct Ready {
    from: Arc<Mutex<Buffers>>,
    chunks: usize,
    longest: usize,
}

impl Ready {
    /// Allocates the buffers that a list of so many chunks lacks, the longest of so many bytes, if there is memory.
    fn new(
        from: Arc<Mutex<Buffers>>,
        of: (&dyn Backend, DeviceId),
        (chunks, longest): (usize, usize),
    ) -> Self {
        allocate(&from, of, chunks, longest);
        Self { from, chunks, longest }
    }

    /// Takes some, if there are any, for a list that waits for other work, which may be the caller's to begin, or not.
    pub(crate) fn take(self, is_held_up: bool) -> Option<Taken> {
        let Self { from, chunks, longest } = self;
        let is_held_up = is_held_up && !transload_core::mutant!("transfer/held-up-list");
        let buffers = from.lock().take(chunks, longest, is_held_up);
        (!buffers.is_empty()).then_some(Taken { from, buffers, is_held_up })
    }
}

/// Buffers of a list that is being submitted. They are put back when dropped.
pub(crate) struct Taken {
    from: Arc<Mutex<Buffers>>,
    buffers: Vec<Scratch>,
    is_held_up: bool,
}

impl Taken {
    /// Returns their memory, in the order in which to use it.
    pub(crate) fn memory(&self) -> impl Iterator<Item = &RawBuffer> + Clone {
        self.buffers.iter().map(|scratch| &scratch.memory)
    }

    /// Does not put them back: work that nobody here knows of may begin to use them. It keeps their memory.
    pub(crate) fn give_up(mut self) {
        let given_up = std::mem::take(&mut self.buffers);
        let mut of = self.from.lock();
        of.taken = of.taken.saturating_sub(given_up.len());
        drop(of);
        // Freeing calls the backend.
        drop(given_up);
    }

    /// Puts them back after a list of so many chunks was submitted.
    pub(crate) fn used(mut self, chunks: usize, end: Option<&Fence>) {
        for scratch in &mut self.buffers {
            (scratch.end, scratch.is_held_up) = (end.cloned(), self.is_held_up);
        }
        // The next list begins with the buffer that is free first.
        let last = chunks % self.buffers.len().max(1);
        self.buffers.rotate_left(last);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.from.lock().put(std::mem::take(&mut self.buffers));
    }
}

/// Allocates what is missing of as many idle buffers as a list of `count` chunks uses in turn, the longest of `bytes` bytes.
fn allocate(of: &Mutex<Buffers>, (backend, lane): (&dyn Backend, DeviceId), count: usize, bytes: usize) {
    // Polled without the lock, since that may wake tasks.
    let ends: Vec<Fence> = of.lock().buffers.iter().filter_map(|scratch| scratch.end.clone()).collect();
    for end in ends {
        let _known_now = end.is_complete();
    }
    let bytes = length(bytes);
    let (missing, short) = of.lock().plan(count, bytes);
    // Freeing calls the backend.
    drop(short);
    if missing == 0 {
        return;
    }
    let mut allocating = Allocating { of, missing, fresh: Vec::new() };
    // On a full device an allocation waits for all work, some of which may be the caller's to begin.
    let is_full = backend.memory_info(lane).is_ok_and(|info| info.free < (missing * bytes) as u64);
    if is_full && !transload_core::mutant!("transfer/scratch-of-a-full-device") {
        return;
    }
    for _ in 0..missing {
        match backend.allocate(lane, MemoryKind::Device, bytes) {
            Ok(memory) => allocating.fresh.push(Scratch { memory, end: None, is_held_up: false }),
            Err(error) => {
                // Dropped, since the list does not need it: it has fewer buffers, or goes by the batch call.
                report::call_failed("lists have less or no scratch memory", lane, &error);
                break;
            }
        }
    }
}

/// Returns the length of the buffers of a list whose longest chunk has so many bytes: each is at least twice as long as a shorter one, so that all that are too
/// short together are less than as many of the longest.
fn length(bytes: usize) -> usize {
    let bytes = bytes.next_power_of_two().max(LEAST);
    if bytes < LAUNCH || transload_core::mutant!("transfer/scratch-lengths") { bytes.min(MOST) } else { MOST }
}

/// Buffers that a thread allocates. What it has when dropped, also by a panic of the backend, is put back.
struct Allocating<'a> {
    of: &'a Mutex<Buffers>,
    missing: usize,
    fresh: Vec<Scratch>,
}

impl Drop for Allocating<'_> {
    fn drop(&mut self) {
        let mut of = self.of.lock();
        let failed = self.missing - self.fresh.len();
        of.taken = of.taken.saturating_sub(failed);
        if failed > 0 && !transload_core::mutant!("transfer/scratch-backoff") {
            of.skips = BACKOFF_LISTS;
        }
        of.put(std::mem::take(&mut self.fresh));
    }
}

impl DeviceScratch {
    /// Submits a list whose pairs are in the order of the host's memory, each at most [`CHUNK`] bytes. `None` if nothing was submitted,
    /// since scratch memory or the kernel is missing, a queue cannot wait for earlier work, or pools of blocks overlap.
    ///
    /// # Errors
    /// The queues'. Pairs may have been copied then, and nothing is in flight.
    pub(super) fn submit(
        &self,
        route: &Route,
        request: &TransferRequest<'_>,
        pairs: HalfPairs<'_>,
    ) -> Result<Option<Submitted>, NotSubmitted> {
        if request.extras.is_some_and(|extras| extras.queue.is_some())
            || !has_kernel(&*route.backend, route.lane)
        {
            return Ok(None);
        }
        if request.task().is_some_and(|task| !task.may_be_slow) {
            return Err(NotSubmitted::Deferred(Deferral::Slow(route.lane)));
        }
        // If the driver rejects the kernel, the copy engine copies.
        if route.backend.prepare_in_place(route.lane).is_err() {
            return Ok(None);
        }
        let is_upload = request.src.place().device.is_cpu();
        let from = self.buffers(Purpose { device: route.lane, is_upload, is_staged: false });
        let kept = from.lock().queues.clone();
        let of = (request.options.priority, request.options.workload);
        let mut queues = match kept.filter(|kept| kept.of == of) {
            Some(kept) => kept,
            None => Queues::lease(route, request)?,
        };
        if request.task().is_some() {
            let full: SmallVec<[Fence; 2]> = [&queues.engine, &queues.kernel]
                .into_iter()
                .filter_map(|queue| full_until(&**queue))
                .collect();
            require_complete(&full, |_| false)?;
        }
        let (gap, chunks) = match &pairs {
            HalfPairs::Pairs(pairs) => {
                let bytes =
                    pairs.iter().fold(0_u64, |bytes, (src, _)| bytes.saturating_add(src.len() as u64));
                let gap = longest_gap(request.src.place(), (pairs.len() as u64, bytes));
                (gap, chunks_of(lengths(pairs, gap)))
            }
            HalfPairs::Blocks(blocks, range) => {
                (0, chunks_of(iter::repeat_n(blocks.block_bytes(), range.len())))
            }
        };
        let count = chunks.len();
        let longest = chunks.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let buffers = Ready::new(Arc::clone(&from), (&*route.backend, route.lane), (count, longest));
        let mut claims = match &pairs {
            HalfPairs::Pairs(pairs) => request.claim_all(pairs)?,
            HalfPairs::Blocks(blocks, _) => match TransferRequest::claim_blocks(blocks)? {
                Some(claims) => claims,
                None => return Ok(None),
            },
        };
        claims.wait_also(request.after());
        let open: SmallVec<[Fence; 4]> =
            claims.after().iter().filter(|fence| !fence.is_complete()).cloned().collect();
        if !open.is_empty() {
            // Independent lists must not wait for the same work.
            queues = Queues::lease(route, request)?;
            let first = if is_upload { &queues.engine } else { &queues.kernel };
            // Else this thread would wait for the host's work.
            if open.iter().any(|fence| fence.timeline().device().is_cpu())
                && !transload_core::mutant!("transfer/list-prepares-waits")
            {
                first.prepare_waits();
            }
            if !open.iter().all(|fence| first.can_wait_for(fence)) {
                return Ok(None);
            }
        }
        let Some(taken) = buffers.take(!open.is_empty()) else { return Ok(None) };
        let mut halves = Halves::new(&queues, is_upload, gap);
        let enqueued =
            chunks.into_iter().zip(taken.memory().cycle()).try_for_each(|((range, bytes), scratch)| {
                halves.enqueue(pairs.part(range), &scratch.slice(..bytes)?, claims.after())
            });
        if enqueued.is_err() && !transload_core::mutant!("transfer/failed-list-waits") {
            halves.wait();
        }
        let end = halves.end();
        taken.used(count, end.as_ref());
        // After an error others may do better.
        let keep = enqueued.is_ok().then(|| Arc::clone(&queues));
        if open.is_empty() {
            // Dropped without the lock.
            let _before = std::mem::replace(&mut from.lock().queues, keep);
        }
        if let Err(error) = &enqueued
            && (end.is_some() || error.is_partial())
            && !transload_core::mutant!("transfer/failed-list-marks")
        {
            // SAFETY: what was enqueued came after the dependencies, and is complete.
            unsafe { claims.fail(&error.clone().of_part()) };
        }
        match enqueued {
            // Of a queue without the kernel. The batch call copies all of them.
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(None),
            enqueued => enqueued?,
        }
        let Some(end) = end else { return Ok(None) };
        let end = claims.inherit(end);
        // SAFETY: the first operation of all takes effect after the dependencies, every other one after an earlier one, and the end is
        // that of the last one on the queue of all second halves, each of which takes effect after its first half.
        unsafe { claims.commit(&end) };
        Ok(Some(Submitted::Until(end)))
    }

    fn buffers(&self, purpose: Purpose) -> Arc<Mutex<Buffers>> {
        Arc::clone(&self.of.entry(purpose).or_default())
    }

    /// Allocates the buffers that so many chunks lack, the longest of so many bytes, if there is memory.
    pub(crate) fn ready(&self, backend: &dyn Backend, purpose: Purpose, chunks: (usize, usize)) -> Ready {
        Ready::new(self.buffers(purpose), (backend, purpose.device), chunks)
    }

    /// Frees the memory that no list uses now, and that of others when they are complete.
    pub(crate) fn release(&self) {
        // Copied first: freeing calls the backend.
        let all: Vec<_> = self.of.iter().map(|buffers| Arc::clone(&buffers)).collect();
        for buffers in all {
            let mut of = buffers.lock();
            let (freed, queues) = (std::mem::take(&mut of.buffers), of.queues.take());
            drop(of);
            drop((freed, queues));
        }
    }
}

/// Returns whether the device's queues copy within it by a kernel. Loads nothing.
pub(crate) fn has_kernel(backend: &dyn Backend, lane: DeviceId) -> bool {
    let own = Place::new(lane, MemoryKind::Device);
    backend.in_place_copier(own, own) == Some(lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_are_too_short_are_less_than_as_many_of_the_longest() {
        let mut lengths: Vec<_> = (1..=MOST >> 16).map(|step| length(step << 16)).collect();
        lengths.dedup();
        assert!(lengths.is_sorted() && lengths.iter().all(|length| (LEAST..=MOST).contains(length)));
        let longest = lengths.pop();
        assert!(longest == Some(MOST) && lengths.iter().sum::<usize>() < MOST, "{lengths:?}");
        for bytes in [0, 1, LEAST, LAUNCH, MOST] {
            assert!(length(bytes) >= bytes);
        }
    }
}
