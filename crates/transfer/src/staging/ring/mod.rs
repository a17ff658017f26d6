//! A device's staging buffers, bounded in number, which waiting transfers get round-robin.

mod allocation;
mod buffer;
mod hold;
mod reservation;

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use transload_core::{Backend, CostBasis, DeviceId, Error, Fence, MemoryKind, StreamPriority};
use transload_executor::{BlockingKey, Executor};

pub(super) use buffer::StagingBuffer;
pub(crate) use hold::RingHold;
pub(crate) use reservation::Reservation;

use super::{StagedTransfer, StagingTuning, chunk_copy::ChunkCopy};

/// Size of a staging buffer in bytes: 4 MiB. Separate copies of that size reach 0.97 of a link's rate.
pub const STAGING_BUFFER: u64 = 4 << 20;
pub(super) const CAPACITY: usize = STAGING_BUFFER as usize;

/// The staging buffers of one device. Returning one yields the next chunk, of the next transfer, so no task waits for a
/// buffer.
pub(crate) struct StagingRing {
    source: Option<Source>,
    executor: Executor,
    most: usize,
    /// The most bytes of the device's staging buffers, those outside the ring included, if limited.
    limit: Option<u64>,
    /// Bounds the threads that pin memory concurrently.
    pinning: BlockingKey,
    state: Mutex<State>,
    /// Notified when the allocation of a buffer ends.
    allocated: Condvar,
}

/// What a ring's buffers are allocated from.
pub(crate) struct Source {
    /// The device of the ring.
    pub(crate) lane: DeviceId,
    pub(crate) backend: Arc<dyn Backend>,
    /// Has the memory if the device has no pinned memory. The ring may be made before it is registered.
    pub(crate) host: Option<Host>,
}

/// The backend of the host's memory, once it is registered.
pub(crate) type Host = Arc<OnceLock<Arc<dyn Backend>>>;

impl Source {
    /// Returns the backend that has the memory: pinned memory of the device, or, if there is none, pageable of the host.
    fn memory(&self) -> (&Arc<dyn Backend>, DeviceId, MemoryKind) {
        match self.host.as_ref().and_then(|host| host.get()) {
            Some(host) => (host, DeviceId::Cpu, MemoryKind::Pageable),
            None => (&self.backend, self.lane, MemoryKind::Pinned),
        }
    }
}

#[derive(Default)]
struct State {
    free: Vec<StagingBuffer>,
    /// The least number of free buffers since the last reading.
    least_free: usize,
    /// Buffers that exist or are being allocated.
    allocated: usize,
    allocating: usize,
    /// Transfers with chunks to take, by priority, round-robin.
    transfers: [VecDeque<Arc<StagedTransfer>>; 3],
    /// Chunks with a buffer that no thread copies yet, by priority. There are as many tasks that take one each, unless a waiting thread
    /// was faster.
    ready: [VecDeque<ChunkCopy>; 3],
    /// Dispatches until another buffer may be allocated.
    backoff: u32,
    /// Transfers until the first buffer may be allocated.
    skips: u32,
    /// Why the latest allocation failed.
    shortage: Option<Error>,
    /// Transfers that need a buffer to be left.
    holds: usize,
    /// Bytes of staging buffers outside the ring.
    reserved: u64,
    /// What transfers are divided by, if it is not built in, and its origin.
    tuning: Option<(StagingTuning, CostBasis)>,
    /// Built in for the device.
    built_in: StagingTuning,
}

impl StagingRing {
    pub(crate) fn new(executor: &Executor, source: Option<Source>, most: usize, limit: Option<u64>) -> Self {
        let hints = source.as_ref().map(|source| source.backend.staging_hints(source.lane));
        let built_in = StagingTuning::of(&hints.unwrap_or_default());
        Self {
            source,
            executor: executor.clone(),
            most: most.max(1),
            limit,
            pinning: BlockingKey::new(most.div_ceil(2)),
            state: Mutex::new(State { built_in, ..State::default() }),
            allocated: Condvar::new(),
        }
    }

    /// Creates a ring for transfers that need no staging memory, which bounds the chunks copied concurrently.
    pub(crate) fn without_memory(executor: &Executor, most: usize) -> Self {
        let mut ring = Self::new(executor, None, most, None);
        let state = ring.state.get_mut();
        state.free.extend((0..ring.most).map(|_| StagingBuffer::without_memory()));
        state.allocated = ring.most;
        ring
    }

    /// Returns the bytes of the device's staging buffers that exist or are being allocated, those outside the ring included.
    pub(crate) fn bytes(&self) -> u64 {
        let state = self.state.lock();
        state.allocated as u64 * STAGING_BUFFER + state.reserved
    }

    /// Returns the bytes of the ring's staging buffers that exist or are being allocated.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.state.lock().allocated as u64 * STAGING_BUFFER
    }

    /// Returns what transfers are divided by, and its origin.
    pub(crate) fn tuning(&self) -> (StagingTuning, CostBasis) {
        self.state.lock().tuning()
    }

    /// Returns what is built in for the device.
    pub(crate) fn built_in_tuning(&self) -> StagingTuning {
        self.state.lock().built_in
    }

    /// Sets what later transfers are divided by. Values of the user are replaced by such only.
    pub(crate) fn set_tuning(&self, tuning: StagingTuning, basis: CostBasis) {
        let mut state = self.state.lock();
        if basis == CostBasis::User || state.tuning().1 != CostBasis::User {
            state.tuning = Some((tuning, basis));
        }
    }

    pub(crate) fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Returns the most staging buffers of one transfer: not all, or one that waits for a stalled device would block
    /// every other transfer.
    pub(super) fn max_per_transfer(&self) -> usize {
        let others = if self.source.is_some() { (self.most / 8).max(1) } else { 0 };
        self.most.saturating_sub(others).max(1)
    }

    /// Adds a transfer that is ready. Returns a chunk of priority `mine` for the caller to copy, if any.
    pub(super) fn add(
        self: &Arc<Self>,
        transfer: &Arc<StagedTransfer>,
        mine: Option<StreamPriority>,
    ) -> Option<ChunkCopy> {
        self.dispatch(mine, |state| {
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

    /// Starts further chunks of an upload, of which the host has copied one.
    pub(super) fn start_further(self: &Arc<Self>, transfer: &StagedTransfer) {
        if transfer.is_upload() && transfer.buffers_wanted() > 0 {
            let _none = self.dispatch(None, |_| ());
        }
    }

    /// Has a chunk copied, and then further ones, by a task.
    pub(super) fn spawn(self: &Arc<Self>, chunk: ChunkCopy) {
        self.spawn_all(SmallVec::from_iter([chunk]));
    }

    /// Has the chunks copied by tasks, or by threads that wait for their transfers, whichever comes first: a sleeping worker takes as long
    /// to wake as copying a chunk.
    fn spawn_all(self: &Arc<Self>, chunks: SmallVec<[ChunkCopy; 16]>) {
        let mut counts = [0; 3];
        let mut state = self.state.lock();
        for chunk in chunks {
            let priority = chunk.priority();
            counts[State::index(priority)] += 1;
            state.ready[State::index(priority)].push_back(chunk);
        }
        drop(state);
        for priority in [StreamPriority::High, StreamPriority::Normal, StreamPriority::Low] {
            let count = counts[State::index(priority)];
            if count == 0 {
                continue;
            }
            let run = |_| {
                let ring = Arc::clone(self);
                async move {
                    let next = ring.state.lock().ready[State::index(priority)].pop_front();
                    drop(ring);
                    if let Some(chunk) = next {
                        chunk.run().await;
                    }
                }
            };
            // Cannot fail: the executor had a thread when the transfer was started.
            let _always = self.executor.spawn_all(priority, (0..count).map(run));
        }
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

    /// Takes a chunk of the transfer that no other thread copies yet, if there is one and a buffer for it.
    pub(super) fn take(&self, transfer: &Arc<StagedTransfer>) -> Option<ChunkCopy> {
        let mut state = self.state.lock();
        let ready = &mut state.ready[State::index(transfer.priority)];
        if let Some(at) = ready.iter().position(|chunk| chunk.is_of(transfer))
            && !transload_core::mutant!("transfer/waiting-thread-takes-ready-chunks")
        {
            return ready.remove(at);
        }
        if state.free.is_empty() {
            return None;
        }
        let range = transfer.chunks.take()?;
        Some(ChunkCopy::new(Arc::clone(transfer), range, state.pop_free()?))
    }

    /// Takes a free buffer for the calling thread, which returns it soon.
    pub(super) fn take_free_buffer(&self) -> Option<StagingBuffer> {
        self.state.lock().pop_free()
    }

    /// Removes a transfer that has no more chunks to copy.
    pub(super) fn forget(&self, transfer: &StagedTransfer) {
        for transfers in &mut self.state.lock().transfers {
            transfers.retain(|other| !std::ptr::eq(&**other, transfer));
        }
    }

    /// Changes the state, then assigns free buffers to transfers, enqueues the chunks' first device copies, and spawns
    /// a task for each chunk. Returns one chunk of priority `mine` for the caller instead.
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
        let most = self.most_now(&state);
        let (to_allocate, what) = state.reserve_allocations(most);
        drop(state);
        (0..to_allocate).for_each(|_| self.spawn_allocation(what));
        copies.iter_mut().for_each(|next| next.start(false));
        let own =
            copies.iter().position(|next| Some(next.priority()) == mine).map(|index| copies.remove(index));
        if !copies.is_empty() {
            self.spawn_all(copies);
        }
        own
    }
}

impl State {
    fn tuning(&self) -> (StagingTuning, CostBasis) {
        self.tuning.unwrap_or((self.built_in, CostBasis::BuiltIn))
    }

    /// Takes the buffer that was used last.
    fn pop_free(&mut self) -> Option<StagingBuffer> {
        let buffer = self.free.pop();
        self.least_free = self.least_free.min(self.free.len());
        buffer
    }

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
            let buffer = self.pop_free()?;
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
        let transfers = &mut self.transfers[Self::index(transfer.priority)];
        enter(transfers, transfer);
    }

    const fn index(priority: StreamPriority) -> usize {
        match priority {
            StreamPriority::High => 0,
            StreamPriority::Normal => 1,
            StreamPriority::Low => 2,
        }
    }
}

#[cfg(test)]
#[path = "../../../tests/unit/ring.rs"]
#[allow(clippy::unwrap_used)]
mod tests;
