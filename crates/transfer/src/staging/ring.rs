//! The ring: a device's staging buffers, bounded in number, and the transfers that wait for one, which have turns.

use std::{collections::VecDeque, mem, ptr::NonNull, sync::Arc};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{
    Access, Backend, Claims, DeviceId, Error, ErrorKind, Fence, MemoryKind, RawBuffer, Result, StreamPriority,
};
use transload_executor::{BlockingKey, Executor};

use super::{StagedTransfer, chunk_copy::ChunkCopy};

/// Bytes of a staging buffer. Chunks of 4 MiB reach 0.97 of a link's rate where each is a copy of its own.
pub(super) const STAGING_BUFFER: usize = 4 << 20;

/// Turns after a shortage of pinned memory in which no further buffer is tried for.
const BACKOFF_TURNS: u32 = 256;

/// Room for one chunk, which nothing uses while it is in the ring.
pub(super) struct StagingBuffer {
    /// Pinned memory, and where the host sees it; `None` in a ring of turns alone.
    memory: Option<(RawBuffer, NonNull<u8>)>,
}

// SAFETY: the address is that of the buffer, which is Send; the holder of a staging buffer is its only user.
unsafe impl Send for StagingBuffer {}

/// The staging buffers of one device. Whoever returns one is given the next chunk to move, of the next transfer in turn, so no
/// task ever waits for a buffer.
pub(crate) struct StagingRing {
    /// Who makes the buffers, for which device.
    source: Option<(Arc<dyn Backend>, DeviceId)>,
    executor: Executor,
    most: usize,
    /// Bounds how many threads pin memory at once.
    pinning: BlockingKey,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<StagingBuffer>,
    /// Buffers that exist or are being made.
    allocated: usize,
    allocating: usize,
    /// Transfers with chunks that nobody took yet, by priority, in turn.
    transfers: [VecDeque<Arc<StagedTransfer>>; 3],
    /// Turns until another buffer may be made beside those that there are.
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

    /// Returns a ring for transfers that need no staging buffer, of which so many chunks are moved at once.
    pub(crate) fn without_memory(executor: &Executor, most: usize) -> Self {
        let free: Vec<_> = (0..most.max(1)).map(|_| StagingBuffer { memory: None }).collect();
        let (most, pinning) = (free.len(), BlockingKey::new(1));
        let state = Mutex::new(State { free, allocated: most, ..State::default() });
        Self { source: None, executor: executor.clone(), most, pinning, state }
    }

    pub(crate) fn belongs_to_device(&self, device: DeviceId) -> bool {
        self.source.as_ref().is_some_and(|(_, of)| *of == device)
    }

    pub(super) fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Returns how many staging buffers a transfer may use at once: not all, since those that wait for a device that stands
    /// still would keep every other transfer waiting.
    pub(super) fn max_per_transfer(&self) -> usize {
        let others = if self.source.is_some() { (self.most / 8).max(1) } else { 0 };
        self.most.saturating_sub(others).max(1)
    }

    /// Adds a transfer whose chunks may be moved from now on. Returns a chunk of that priority for the caller to move, if any.
    pub(super) fn add(self: &Arc<Self>, transfer: &Arc<StagedTransfer>) -> Option<ChunkCopy> {
        self.dispatch(Some(transfer.priority), |state| {
            // A thread that helps may have taken all, and even given up: then nobody would take it out again.
            if !transfer.chunks.are_taken() {
                state.enqueue(Arc::clone(transfer), VecDeque::push_back);
            }
        })
    }

    /// Takes a buffer back, and returns a chunk of that priority for the caller to move, if any.
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

    /// Takes a buffer from a task that ended early. After `copies` that may use it yet, its memory is given up instead, and freed
    /// when these are over.
    pub(super) fn recover(self: &Arc<Self>, buffer: StagingBuffer, copies: &[Fence]) {
        let _none = if copies.is_empty() {
            self.return_buffer(buffer, None)
        } else {
            buffer.free_after(copies);
            self.dispatch(None, |state| state.allocated -= 1)
        };
    }

    /// Returns a chunk of the transfer, if there is one and a free buffer for it.
    pub(super) fn take(&self, transfer: &Arc<StagedTransfer>) -> Option<ChunkCopy> {
        let mut state = self.state.lock();
        if state.free.is_empty() {
            return None;
        }
        let range = transfer.chunks.take()?;
        Some(ChunkCopy::new(Arc::clone(transfer), range, state.free.pop()?))
    }

    /// Forgets a transfer of the caller's of which no chunk is to be moved any more.
    pub(super) fn forget(&self, transfer: &StagedTransfer) {
        for transfers in &mut self.state.lock().transfers {
            transfers.retain(|other| !std::ptr::eq(&**other, transfer));
        }
    }

    /// Changes the state, then gives every free buffer to a transfer that may have it, and has as many tasks move the chunks.
    /// What the device does first is enqueued here. Of one chunk of priority `mine` the caller is that task.
    fn dispatch(
        self: &Arc<Self>,
        mine: Option<StreamPriority>,
        change: impl FnOnce(&mut State),
    ) -> Option<ChunkCopy> {
        let mut copies = SmallVec::<[ChunkCopy; 16]>::new();
        // Their last handles may go here: outside the lock.
        let mut finished = SmallVec::<[Arc<StagedTransfer>; 4]>::new();
        let mut state = self.state.lock();
        change(&mut state);
        while let Some(next) = state.next(&mut finished) {
            copies.push(next);
        }
        let to_allocate = state.to_allocate(self.most);
        drop(state);
        (0..to_allocate).for_each(|_| self.allocate_another());
        copies.iter_mut().for_each(|next| next.start(false));
        let own =
            copies.iter().position(|next| Some(next.priority()) == mine).map(|index| copies.remove(index));
        while let Some(priority) = copies.first().map(ChunkCopy::priority) {
            let (same, others): (SmallVec<_>, _) =
                copies.into_iter().partition(|next| next.priority() == priority);
            // There is a thread: the transfer was begun by one.
            let _always = self.executor.spawn_all(priority, same.into_iter().map(ChunkCopy::run));
            copies = others;
        }
        own
    }

    /// Makes a buffer, which is counted, on a spare thread.
    fn allocate_another(self: &Arc<Self>) {
        let making =
            PendingBuffer { ring: Arc::clone(self), outcome: Err(unavailable("nothing could make it")) };
        drop(self.executor.spawn_blocking(&self.pinning, move || {
            let mut making = making;
            making.outcome = making.ring.allocate();
        }));
    }

    fn allocate(&self) -> Result<StagingBuffer> {
        let Some((backend, device)) = &self.source else { return Err(unavailable("this ring has none")) };
        let _attached = backend.attach_thread();
        let buffer = backend.allocate(*device, MemoryKind::Pinned, STAGING_BUFFER)?;
        match buffer.host_address() {
            Some(address) => Ok(StagingBuffer { memory: Some((buffer, address)) }),
            None => Err(unavailable("the host cannot address the pinned memory")),
        }
    }

    /// Gives the free buffers back to the backend.
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
    /// Pairs a free buffer with the next chunk. Transfers without any are put into `finished`.
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
                // The others come first.
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

    /// Returns how many further buffers are of use, and counts them as being made.
    fn to_allocate(&mut self, most: usize) -> usize {
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
        // No more at once than there are: a driver pins one after the other, and the first chunks would wait for all.
        let at_once = (self.allocated - self.allocating).max(1);
        let to_allocate = wanted.min(at_once).saturating_sub(self.allocating).min(room);
        self.allocated += to_allocate;
        self.allocating += to_allocate;
        to_allocate
    }
}

/// A buffer that is being made. Dropped, it was made or not.
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
        // Fewer must do, if there are any.
        state.backoff = BACKOFF_TURNS;
        let waiting = if state.allocated == 0 { mem::take(&mut state.transfers) } else { Default::default() };
        drop(state);
        for transfer in waiting.into_iter().flatten() {
            let error = error.clone();
            let failing = async move { transfer.fail(error).await };
            let _always = ring.executor.spawn_detached(StreamPriority::Normal, failing);
        }
    }
}

impl StagingBuffer {
    /// Leaves the memory to its backend, which frees it when all copies that use it are over. The last one may be over first,
    /// where its device is lost; so each is a use by itself, which only reads do not replace.
    fn free_after(self, copies: &[Fence]) {
        let Some((buffer, _)) = &self.memory else { return };
        for copy in copies {
            match Claims::acquire(&mut [(buffer, Access::Read)]) {
                // SAFETY: only reads were claimed before, so nothing comes before it and nothing is forgotten.
                Ok(claims) => unsafe { claims.commit(copy) },
                // Never: nobody else has the buffer.
                Err(_) => mem::forget(buffer.clone()),
            }
        }
    }

    /// Returns the first `bytes` bytes, and where the host sees them.
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
