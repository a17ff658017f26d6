//! Lists through scratch memory of a device: see `many/through_device.rs`.

use std::{ops::Range, sync::Arc};

use dashmap::DashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{
    Access, Backend, BatchHalf, Claims, DeviceId, Fence, MemoryKind, Operation, Place, Queue, RawBuffer,
    Result, StreamPriority, Submitted, Timing, WorkloadType, events::report,
};

use super::{Route, TransferRequest};
use crate::{
    attempt::{Deferral, NotSubmitted},
    many::follows,
};

/// Most bytes that are gathered or scattered by one launch. Beside other kernels a launch waits for a place as long as a copy engine takes
/// for about so much.
pub(crate) const CHUNK: usize = 32 << 20;
/// Scratch buffers of a direction: one is filled while others are emptied.
const BUFFERS: usize = 3;
/// Least bytes of a scratch buffer.
const LEAST: usize = 1 << 20;

/// The scratch memory of a manager's devices: at most [`BUFFERS`] of [`CHUNK`] bytes for each device and direction. It is kept for later
/// lists.
#[derive(Debug, Default)]
pub(super) struct DeviceScratch {
    /// By device, and whether for uploads.
    of: DashMap<(DeviceId, bool), Arc<Mutex<Buffers>>>,
}

/// Those of a direction. Locked while a list is submitted.
#[derive(Debug, Default)]
struct Buffers {
    buffers: SmallVec<[RawBuffer; BUFFERS]>,
    /// Number of chunks so far: the buffers are used in turn.
    turn: usize,
}

impl Buffers {
    /// Sees to it that there is a buffer at least, and `count` if possible, each of `bytes` bytes.
    ///
    /// # Errors
    /// The backend's.
    fn ensure(&mut self, route: &Route, count: usize, bytes: usize) -> Result<()> {
        let bytes = bytes.next_power_of_two().clamp(LEAST, CHUNK);
        // One that is still in use is freed after that.
        self.buffers.retain(|buffer| buffer.len() >= bytes);
        while self.buffers.len() < count.min(BUFFERS) {
            match route.backend.allocate(route.lane, MemoryKind::Device, bytes) {
                Ok(buffer) => self.buffers.push(buffer),
                Err(error) if self.buffers.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn next(&mut self, bytes: usize) -> Result<RawBuffer> {
        self.turn = self.turn.wrapping_add(1);
        let at = self.turn % self.buffers.len().max(1);
        let missing =
            || transload_core::Error::new(transload_core::ErrorKind::Interrupted, "no scratch memory");
        self.buffers.get(at).ok_or_else(missing)?.slice(..bytes)
    }
}

/// The queues of one list, and the ends of what was enqueued on them.
struct Halves<'a> {
    engine: &'a dyn Queue,
    kernel: &'a dyn Queue,
    is_upload: bool,
    engine_end: Option<Fence>,
    kernel_end: Option<Fence>,
}

impl DeviceScratch {
    /// Submits a list whose pairs are in the order of the host's memory, each at most [`CHUNK`] bytes. `None` if nothing was submitted,
    /// since scratch memory or the kernel is missing, or a queue cannot wait for earlier work.
    ///
    /// # Errors
    /// The queues'. Pairs may have been copied then, and nothing is in flight.
    pub(super) fn submit(
        &self,
        route: &Route,
        request: &TransferRequest<'_>,
        pairs: &[(RawBuffer, RawBuffer)],
    ) -> Result<Option<Submitted>, NotSubmitted> {
        if request.extras.is_some_and(|extras| extras.queue.is_some())
            || !has_kernel(&*route.backend, route.lane)
        {
            return Ok(None);
        }
        if request.task().is_some_and(|task| !task.may_be_slow) {
            return Err(NotSubmitted::Deferred(Deferral::Slow(route.lane)));
        }
        let is_upload = request.src.place().device.is_cpu();
        let engine = request.lease(&*route.backend, route.lane, WorkloadType::Memory, false)?;
        // Beside other kernels it waits for a place.
        let kernel = route.backend.lease_queue(route.lane, StreamPriority::High, WorkloadType::Compute)?;
        let chunks = chunks_of(pairs);
        let longest = chunks.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let buffers = Arc::clone(&self.of.entry((route.lane, is_upload)).or_default());
        let mut buffers = buffers.lock();
        if let Err(error) = buffers.ensure(route, chunks.len(), longest) {
            report::call_failed("a list goes by the batch call instead of device memory", route.lane, &error);
            return Ok(None);
        }
        let mut claims = request.claim_all(pairs)?;
        claims.wait_also(request.after());
        let first: &dyn Queue = if is_upload { &*engine } else { &*kernel };
        if !claims.after().iter().all(|fence| fence.is_known_complete() || first.can_wait_for(fence)) {
            return Ok(None);
        }
        let mut halves =
            Halves { engine: &*engine, kernel: &*kernel, is_upload, engine_end: None, kernel_end: None };
        for (range, bytes) in chunks {
            let chunk = pairs.get(range).unwrap_or_default();
            let enqueued =
                buffers.next(bytes).and_then(|scratch| halves.enqueue(chunk, &scratch, claims.after()));
            if let Err(error) = enqueued {
                if !transload_core::mutant!("transfer/failed-list-waits") {
                    halves.wait();
                }
                return Err(error.into());
            }
        }
        let Some(end) = halves.end() else { return Ok(None) };
        let end = claims.inherit(end);
        // SAFETY: the first operation of all takes effect after the dependencies, every other one after an earlier one, and the end is
        // that of the last one on the queue of all second halves, each of which takes effect after its first half.
        unsafe { claims.commit(&end) };
        Ok(Some(Submitted::Until(end)))
    }

    /// Frees the memory that no list uses now, and that of others when they are complete.
    pub(super) fn release(&self) {
        // Copied first: freeing calls the backend.
        let all: Vec<_> = self.of.iter().map(|buffers| Arc::clone(&buffers)).collect();
        for buffers in all {
            let freed = std::mem::take(&mut *buffers.lock());
            drop(freed);
        }
    }
}

impl Halves<'_> {
    /// Enqueues a chunk, after these fences.
    fn enqueue(
        &mut self,
        pairs: &[(RawBuffer, RawBuffer)],
        scratch: &RawBuffer,
        after: &[Fence],
    ) -> Result<()> {
        // Not of other threads: they wait for the lock.
        let claims = Claims::acquire(&mut [(scratch, Access::Write)])?;
        let stretches = self.stretches(pairs, scratch)?;
        let batch = Operation::CopyBatch { pairs: &stretches };
        let before: SmallVec<[Fence; 4]> = claims.after().iter().chain(after).cloned().collect();
        // SAFETY: the pairs were checked and are claimed until the end of the list, which comes after that of the chunk; the scratch memory
        // is claimed until the end of the chunk, and is as long as the pairs, of which the stretches are made.
        unsafe {
            if self.is_upload {
                self.engine_end = Some(self.engine.enqueue(&batch, &before, Timing::Off)?);
                let filled = self.engine_end.as_slice();
                let filled =
                    if transload_core::mutant!("transfer/scatter-after-copy") { &[] } else { filled };
                self.kernel_end =
                    Some(self.kernel.enqueue_half(BatchHalf::Scatter, pairs, scratch, filled)?);
            } else {
                self.kernel_end =
                    Some(self.kernel.enqueue_half(BatchHalf::Gather, pairs, scratch, &before)?);
                let filled = self.kernel_end.as_slice();
                self.engine_end = Some(self.engine.enqueue(&batch, filled, Timing::Off)?);
            }
            if let Some(end) = self.end()
                && !transload_core::mutant!("transfer/scratch-in-use")
            {
                claims.commit(&end);
            }
        }
        Ok(())
    }

    /// Returns the ranges of the host's memory that the pairs fill, each with its part of the scratch memory.
    fn stretches(
        &self,
        pairs: &[(RawBuffer, RawBuffer)],
        scratch: &RawBuffer,
    ) -> Result<SmallVec<[(RawBuffer, RawBuffer); 1]>> {
        let mut stretches = SmallVec::new();
        let (mut open, mut begin): (Option<RawBuffer>, _) = (None, 0);
        let mut close = |stretch: RawBuffer| -> Result<()> {
            let end = begin + stretch.len();
            let staged = scratch.slice(begin..end)?;
            begin = end;
            stretches.push(if self.is_upload { (stretch, staged) } else { (staged, stretch) });
            Ok(())
        };
        for (src, dst) in pairs.iter().filter(|(src, _)| !src.is_empty()) {
            let piece = if self.is_upload { src } else { dst };
            let longer =
                open.as_ref().filter(|open| follows(open, piece)).and_then(|open| open.joined(piece));
            if let Some(longer) = longer {
                open = Some(longer);
            } else if let Some(complete) = open.replace(piece.clone()) {
                close(complete)?;
            }
        }
        open.map_or(Ok(()), close)?;
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

/// Returns whether the device's queues copy within it by a kernel.
fn has_kernel(backend: &dyn Backend, lane: DeviceId) -> bool {
    let own = Place::new(lane, MemoryKind::Device);
    backend.in_place_copier(own, own) == Some(lane) && backend.prepare_in_place(lane).is_ok()
}

/// Cuts a list into as few chunks as possible, of about equal lengths. Returns the indices of each one's pairs, and its bytes.
fn chunks_of(pairs: &[(RawBuffer, RawBuffer)]) -> Vec<(Range<usize>, usize)> {
    let total = pairs.iter().map(|(src, _)| src.len()).fold(0, usize::saturating_add);
    let enough = total.div_ceil(total.div_ceil(CHUNK).max(1));
    let mut chunks = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    for (index, (src, _)) in pairs.iter().enumerate() {
        if bytes > 0 && (bytes >= enough || bytes + src.len() > CHUNK) {
            chunks.push((first..index, bytes));
            (first, bytes) = (index, 0);
        }
        bytes += src.len();
    }
    chunks.push((first..pairs.len(), bytes));
    chunks
}
