//! Scratch memory of devices, and lists that go through it: see `many/through_device.rs`.

use std::{iter, sync::Arc};

use dashmap::DashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{
    Access, Backend, BatchHalf, Claims, DeviceId, ErrorKind, Fence, HalfPairs, MemoryKind, Operation, Place,
    QueueLease, RawBuffer, Result, StreamPriority, Submitted, Timing, WorkloadType, events::report,
    full_until, require_complete,
};

use super::{
    Route, TransferRequest,
    device_chunks::{chunks_of, lengths},
};
use crate::{
    attempt::{Deferral, NotSubmitted},
    many::longest_gap,
};

/// Most bytes of a chunk of a cast, of a list that is staged in host memory too, and of a piece.
pub(crate) const CHUNK: usize = 32 << 20;
/// Most bytes of a list that are gathered or scattered by one launch. Beside other kernels a launch waits for a place as long as a copy engine
/// takes for 32 MiB: by 64, blocks of 24 KiB go both ways beside a GEMM loop at 94 GB/s instead of 78, of 4 KiB at 65 instead of 59 (H200).
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

/// The queues of a list.
#[derive(Debug)]
struct Queues {
    engine: QueueLease,
    kernel: QueueLease,
    /// For which the engine's was leased.
    of: (StreamPriority, Option<WorkloadType>),
}

impl Queues {
    fn lease(route: &Route, request: &TransferRequest<'_>) -> Result<Arc<Self>, NotSubmitted> {
        let engine = request.lease(&*route.backend, route.lane, WorkloadType::Memory, false)?;
        // Beside other kernels it waits for a place.
        let kernel = route.backend.lease_queue(route.lane, StreamPriority::High, WorkloadType::Compute)?;
        Ok(Arc::new(Self { engine, kernel, of: (request.options.priority, request.options.workload) }))
    }
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
    let bytes = bytes.next_power_of_two().clamp(LEAST, MOST);
    let (missing, short) = of.lock().plan(count, bytes);
    // Freeing calls the backend.
    drop(short);
    if missing == 0 {
        return;
    }
    let mut allocating = Allocating { of, missing, fresh: Vec::new() };
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

/// The queues of one list, and the ends of what was enqueued on them.
struct Halves<'a> {
    queues: &'a Queues,
    is_upload: bool,
    /// Most bytes between two pieces of a stretch.
    gap: usize,
    engine_end: Option<Fence>,
    kernel_end: Option<Fence>,
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
            HalfPairs::Blocks(blocks, _) => match request.claim_blocks(blocks)? {
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
        let mut halves = Halves { queues: &queues, is_upload, gap, engine_end: None, kernel_end: None };
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

impl Drop for Halves<'_> {
    /// If the backend panics, the claims and the scratch memory end after this.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.wait();
        }
    }
}

impl Halves<'_> {
    /// Enqueues a chunk, after these fences.
    fn enqueue(&mut self, pairs: HalfPairs<'_>, scratch: &RawBuffer, after: &[Fence]) -> Result<()> {
        // Of no other thread: this one took it.
        let claims = Claims::acquire(&mut [(scratch, Access::Write)])?;
        let stretches = self.stretches(&pairs, scratch)?;
        let batch = Operation::CopyBatch { pairs: &stretches };
        let before: SmallVec<[Fence; 4]> = claims.after().iter().chain(after).cloned().collect();
        // SAFETY: the pairs were checked and are claimed until the end of the list, which comes after that of the chunk; the scratch memory
        // is claimed until the end of the chunk, and is as long as the stretches, which are made of the pairs and the gaps between them.
        // Nobody claimed the gaps, which others may write while the engine reads them: their copies in scratch memory are never used.
        unsafe {
            if self.is_upload {
                self.engine_end = Some(self.queues.engine.enqueue(&batch, &before, Timing::Off)?);
                let filled = self.engine_end.as_slice();
                let filled =
                    if transload_core::mutant!("transfer/scatter-after-copy") { &[] } else { filled };
                let half = BatchHalf::Scatter { gap: self.gap };
                self.kernel_end = Some(self.queues.kernel.enqueue_half(half, pairs, scratch, filled)?);
            } else {
                self.kernel_end =
                    Some(self.queues.kernel.enqueue_half(BatchHalf::Gather, pairs, scratch, &before)?);
                let filled = self.kernel_end.as_slice();
                self.engine_end = Some(self.queues.engine.enqueue(&batch, filled, Timing::Off)?);
            }
            if let Some(end) = self.end()
                && !transload_core::mutant!("transfer/scratch-in-use")
            {
                claims.commit(&end);
            }
        }
        Ok(())
    }

    /// Returns the ranges of the host's memory that the pairs fill, but for gaps of an upload, each with its part of the scratch memory.
    fn stretches(
        &self,
        pairs: &HalfPairs<'_>,
        scratch: &RawBuffer,
    ) -> Result<SmallVec<[(RawBuffer, RawBuffer); 1]>> {
        match pairs {
            HalfPairs::Pairs(pairs) => {
                let pieces = pairs.iter().filter(|(src, _)| !src.is_empty());
                self.joined(pieces.map(|(src, dst)| if self.is_upload { src } else { dst }), scratch)
            }
            HalfPairs::Blocks(blocks, range) => {
                let bytes = blocks.block_bytes();
                let runs = blocks.parts(range.clone()).flat_map(|((src, dst), from, to)| {
                    let (pool, indices) = if self.is_upload { (src, from) } else { (dst, to) };
                    let runs = indices.chunk_by(|one, next| one.checked_add(1) == Some(*next));
                    runs.map(move |run| {
                        let begin = run.first().copied().unwrap_or_default() * bytes;
                        pool.slice(begin..begin + run.len() * bytes)
                    })
                });
                let runs = runs.collect::<Result<Vec<_>>>()?;
                self.joined(runs.iter(), scratch)
            }
        }
    }

    /// Joins pieces of the host's memory within the longest gap.
    fn joined<'a>(
        &self,
        pieces: impl Iterator<Item = &'a RawBuffer>,
        scratch: &RawBuffer,
    ) -> Result<SmallVec<[(RawBuffer, RawBuffer); 1]>> {
        let (mut stretches, mut begin) = (SmallVec::new(), 0);
        // A view of each piece would count references.
        let mut close = |first: &RawBuffer, last: &RawBuffer| -> Result<()> {
            let stretch = first.extended(last).unwrap_or_else(|| first.clone());
            let end = begin + stretch.len();
            let staged = scratch.slice(begin..end)?;
            begin = end;
            stretches.push(if self.is_upload { (stretch, staged) } else { (staged, stretch) });
            Ok(())
        };
        let mut open: Option<(&RawBuffer, &RawBuffer)> = None;
        for piece in pieces {
            let first = match open {
                Some((first, last)) if last.gap_to(piece, self.gap).is_some() => first,
                Some((first, last)) => {
                    close(first, last)?;
                    piece
                }
                None => piece,
            };
            open = Some((first, piece));
        }
        open.map_or(Ok(()), |(first, last)| close(first, last))?;
        Ok(stretches)
    }

    /// Returns the end of the last second half.
    fn end(&self) -> Option<Fence> {
        if self.is_upload { self.kernel_end.clone() } else { self.engine_end.clone() }
    }

    /// Waits for all that was enqueued.
    #[cold]
    fn wait(&self) {
        for end in [&self.engine_end, &self.kernel_end].into_iter().flatten() {
            // The list has an error already; either way its work is complete.
            let _over = end.wait();
        }
    }
}

/// Returns whether the device's queues copy within it by a kernel. Loads nothing.
pub(crate) fn has_kernel(backend: &dyn Backend, lane: DeviceId) -> bool {
    let own = Place::new(lane, MemoryKind::Device);
    backend.in_place_copier(own, own) == Some(lane)
}
