//! A device's staging buffers, bounded in number, which waiting transfers get round-robin.

use std::{collections::VecDeque, mem, ptr::NonNull, sync::Arc, time::Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{
    Access, Backend, Claims, DeviceId, Error, ErrorKind, Fence, MemoryKind, RawBuffer, Result, StreamPriority,
};
use transload_executor::{BlockingKey, Executor};

use super::{StagedTransfer, chunk_copy::ChunkCopy};
use crate::report_events;

/// Size of a staging buffer in bytes: 4 MiB. Separate copies of that size reach 0.97 of a link's rate.
pub const STAGING_BUFFER: u64 = 4 << 20;
pub(super) const CAPACITY: usize = STAGING_BUFFER as usize;

/// Dispatches after a shortage of pinned memory during which no buffer is allocated.
const BACKOFF_TURNS: u32 = 256;

/// Pinned memory for one chunk. Unused while it is in the ring.
pub(super) struct StagingBuffer {
    /// The memory and its host address; `None` in a ring without memory.
    memory: Option<(RawBuffer, NonNull<u8>)>,
}

// SAFETY: the address is that of the buffer, which is Send; the holder of a staging buffer is its only user.
unsafe impl Send for StagingBuffer {}

/// The staging buffers of one device. Returning one yields the next chunk, of the next transfer, so no task waits for a
/// buffer.
pub(crate) struct StagingRing {
    /// Backend and device that the buffers are allocated from.
    source: Option<(Arc<dyn Backend>, DeviceId)>,
    executor: Executor,
    most: usize,
    /// Bounds the threads that pin memory concurrently.
    pinning: BlockingKey,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<StagingBuffer>,
    /// Buffers that exist or are being allocated.
    allocated: usize,
    allocating: usize,
    /// Transfers with chunks to take, by priority, round-robin.
    transfers: [VecDeque<Arc<StagedTransfer>>; 3],
    /// Dispatches until another buffer may be allocated.
    backoff: u32,
}

impl StagingRing {
    pub(crate) fn new(
        executor: &Executor,
        backend: &Arc<dyn Backend>,
        device: DeviceId,
        most: usize,
    ) -> Self {
        let pinning = BlockingKey::new(most.div_ceil(2));
        let (source, executor) = (Some((Arc::clone(backend), device)), executor.clone());
        Self { source, executor, most: most.max(1), pinning, state: Mutex::default() }
    }

    /// Creates a ring for transfers that need no staging memory, which bounds the chunks copied concurrently.
    pub(crate) fn without_memory(executor: &Executor, most: usize) -> Self {
        let free: Vec<_> = (0..most.max(1)).map(|_| StagingBuffer { memory: None }).collect();
        let (most, pinning) = (free.len(), BlockingKey::new(1));
        let state = Mutex::new(State { free, allocated: most, ..State::default() });
        Self { source: None, executor: executor.clone(), most, pinning, state }
    }

    /// Returns the bytes of the staging buffers that exist or are being allocated.
    pub(crate) fn bytes(&self) -> u64 {
        let allocated = self.state.lock().allocated;
        if self.source.is_some() { allocated as u64 * STAGING_BUFFER } else { 0 }
    }

    pub(super) fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Returns the most staging buffers of one transfer: not all, or one that waits for a stalled device would block
    /// every other transfer.
    pub(super) fn max_per_transfer(&self) -> usize {
        let others = if self.source.is_some() { (self.most / 8).max(1) } else { 0 };
        self.most.saturating_sub(others).max(1)
    }

    /// Adds a transfer that is ready. Returns a chunk of its priority for the caller to copy, if any.
    pub(super) fn add(self: &Arc<Self>, transfer: &Arc<StagedTransfer>) -> Option<ChunkCopy> {
        self.dispatch(Some(transfer.priority), |state| {
            // A helping thread may have taken all chunks; then nothing would remove the transfer again.
            if !transfer.chunks.are_taken() {
                state.enqueue(Arc::clone(transfer), VecDeque::push_back);
            }
        })
    }

    /// Returns a buffer to the ring. Returns a chunk of priority `mine` for the caller to copy, if any.
    pub(super) fn return_buffer(
        self: &Arc<Self>,
        buffer: StagingBuffer,
        mine: Option<StreamPriority>,
    ) -> Option<ChunkCopy> {
        if transload_core::mutant!("transfer/ring-wakes") {
            self.state.lock().free.push(buffer);
            return None;
        }
        self.dispatch(mine, |state| state.free.push(buffer))
    }

    /// Recovers the buffer of a task that ended early. If `copies` may still use it, its memory is freed after them
    /// instead.
    pub(super) fn recover(self: &Arc<Self>, buffer: StagingBuffer, copies: &[Fence]) {
        let _none = if copies.is_empty() {
            self.return_buffer(buffer, None)
        } else {
            buffer.free_after(copies);
            self.dispatch(None, |state| state.allocated -= 1)
        };
    }

    /// Takes a chunk of the transfer, if there is one and a free buffer for it.
    pub(super) fn take(&self, transfer: &Arc<StagedTransfer>) -> Option<ChunkCopy> {
        let mut state = self.state.lock();
        if state.free.is_empty() {
            return None;
        }
        let range = transfer.chunks.take()?;
        Some(ChunkCopy::new(Arc::clone(transfer), range, state.free.pop()?))
    }

    /// Removes a transfer that has no more chunks to copy.
    pub(super) fn forget(&self, transfer: &StagedTransfer) {
        for transfers in &mut self.state.lock().transfers {
            transfers.retain(|other| !std::ptr::eq(&**other, transfer));
        }
    }

    /// Changes the state, then assigns free buffers to transfers, enqueues the chunks' first device copies, and spawns
    /// a task per chunk. Returns one chunk of priority `mine` for the caller instead.
    fn dispatch(
        self: &Arc<Self>,
        mine: Option<StreamPriority>,
        change: impl FnOnce(&mut State),
    ) -> Option<ChunkCopy> {
        let mut copies = SmallVec::<[ChunkCopy; 16]>::new();
        // Dropped outside the lock: these may be the last handles.
        let mut finished = SmallVec::<[Arc<StagedTransfer>; 4]>::new();
        let mut state = self.state.lock();
        change(&mut state);
        while let Some(next) = state.next(&mut finished) {
            copies.push(next);
        }
        let to_allocate = state.reserve_allocations(self.most);
        drop(state);
        (0..to_allocate).for_each(|_| self.allocate_another());
        copies.iter_mut().for_each(|next| next.start(false));
        let own =
            copies.iter().position(|next| Some(next.priority()) == mine).map(|index| copies.remove(index));
        while let Some(priority) = copies.first().map(ChunkCopy::priority) {
            let (same, others): (SmallVec<_>, _) =
                copies.into_iter().partition(|next| next.priority() == priority);
            // Cannot fail: the transfer was started by a thread of the executor.
            let _always = self.executor.spawn_all(priority, same.into_iter().map(ChunkCopy::run));
            copies = others;
        }
        own
    }

    /// Allocates a buffer, already counted, on a blocking thread.
    fn allocate_another(self: &Arc<Self>) {
        let making =
            PendingBuffer { ring: Arc::clone(self), outcome: Err(unavailable("nothing could make it")) };
        drop(self.executor.spawn_blocking(&self.pinning, move || {
            let mut making = making;
            let begun = Instant::now();
            making.outcome = making.ring.allocate();
            if let (Ok(_), Some((_, device))) = (&making.outcome, &making.ring.source) {
                let buffers = making.ring.state.lock().allocated;
                report_events::ring_grown(*device, buffers, begun.elapsed());
            }
        }));
    }

    fn allocate(&self) -> Result<StagingBuffer> {
        let Some((backend, device)) = &self.source else { return Err(unavailable("this ring has none")) };
        let _attached = backend.attach_thread();
        let buffer = backend.allocate(*device, MemoryKind::Pinned, CAPACITY)?;
        match buffer.host_address() {
            Some(address) => Ok(StagingBuffer { memory: Some((buffer, address)) }),
            None => Err(unavailable("the host cannot address the pinned memory")),
        }
    }

    /// Frees the unused buffers.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        let free = mem::take(&mut state.free);
        state.allocated -= free.len();
        drop(state);
    }
}

fn unavailable(why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("no staging buffer: {why}"))
}

impl State {
    /// Pairs a free buffer with the next chunk. Moves transfers without chunks to `finished`.
    fn next(&mut self, finished: &mut SmallVec<[Arc<StagedTransfer>; 4]>) -> Option<ChunkCopy> {
        while !self.free.is_empty() {
            let may = |transfer: &Arc<StagedTransfer>| transfer.can_take_chunk();
            let (transfers, index) = self
                .transfers
                .iter_mut()
                .find_map(|transfers| transfers.iter().position(may).map(|index| (transfers, index)))?;
            let transfer = transfers.remove(index)?;
            let Some(range) = transfer.chunks.take() else {
                finished.push(transfer);
                continue;
            };
            let buffer = self.free.pop()?;
            if !transfer.chunks.are_taken() {
                // Round-robin.
                let first = transload_core::mutant!("transfer/turns");
                let enter = if first { VecDeque::push_front } else { VecDeque::push_back };
                self.enqueue(Arc::clone(&transfer), enter);
            }
            return Some(ChunkCopy::new(transfer, range, buffer));
        }
        None
    }

    fn enqueue(
        &mut self,
        transfer: Arc<StagedTransfer>,
        enter: fn(&mut VecDeque<Arc<StagedTransfer>>, Arc<StagedTransfer>),
    ) {
        let [high, normal, low] = &mut self.transfers;
        let transfers = match transfer.priority {
            StreamPriority::High => high,
            StreamPriority::Normal => normal,
            StreamPriority::Low => low,
        };
        enter(transfers, transfer);
    }

    /// Returns the number of buffers to allocate, and counts them as being allocated.
    fn reserve_allocations(&mut self, most: usize) -> usize {
        let room = most.saturating_sub(self.allocated);
        if room == 0 || (self.backoff > 0 && self.allocated > 0) {
            self.backoff = self.backoff.saturating_sub(1);
            return 0;
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
        self.allocated += to_allocate;
        self.allocating += to_allocate;
        to_allocate
    }
}

/// A buffer being allocated. Its drop reports the outcome, even after a panic.
struct PendingBuffer {
    ring: Arc<StagingRing>,
    outcome: Result<StagingBuffer>,
}

impl Drop for PendingBuffer {
    fn drop(&mut self) {
        let outcome = mem::replace(&mut self.outcome, Err(unavailable("it was taken")));
        let ring = &self.ring;
        let error = match outcome {
            Ok(made) => {
                let _none = ring.dispatch(None, |state| {
                    state.allocating -= 1;
                    state.free.push(made);
                });
                return;
            }
            Err(error) => error,
        };
        let mut state = ring.state.lock();
        state.allocating -= 1;
        state.allocated -= 1;
        // Go on with the existing buffers, if any.
        state.backoff = BACKOFF_TURNS;
        let waiting = if state.allocated == 0 { mem::take(&mut state.transfers) } else { Default::default() };
        let allocated = state.allocated;
        drop(state);
        if let Some((_, device)) = &ring.source {
            report_events::ring_limited(*device, allocated, ring.most, &error);
        }
        for transfer in waiting.into_iter().flatten() {
            let error = error.clone();
            let failing = async move { transfer.fail(error).await };
            let _always = ring.executor.spawn_detached(StreamPriority::Normal, failing);
        }
    }
}

impl StagingBuffer {
    /// Frees the memory once all copies that use it are complete. They may complete in any order if a device is lost,
    /// so each is recorded as a read, which replaces no other.
    fn free_after(self, copies: &[Fence]) {
        let Some((buffer, _)) = &self.memory else { return };
        for copy in copies {
            match Claims::acquire(&mut [(buffer, Access::Read)]) {
                // SAFETY: earlier claims were reads, so there is nothing to wait for and no use is replaced.
                Ok(claims) => unsafe { claims.commit(copy) },
                // Unreachable: there is no other user of the buffer.
                Err(_) => mem::forget(buffer.clone()),
            }
        }
    }

    /// Returns the first `bytes` bytes and their host address.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] for more than a staging buffer has.
    pub(super) fn slice(&self, bytes: usize) -> Result<(RawBuffer, NonNull<u8>)> {
        match &self.memory {
            Some((buffer, address)) => Ok((buffer.slice(..bytes)?, *address)),
            None => Err(unavailable("this ring has none")),
        }
    }
}
