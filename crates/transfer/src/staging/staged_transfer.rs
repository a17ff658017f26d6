//! A staged transfer under way: tasks of the executor take its chunks until none is left.

use std::{
    any::Any,
    ops::Range,
    sync::{Arc, OnceLock},
    time::Instant,
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{Backend, DeviceId, Error, ErrorKind, Fence, RawBuffer, Result, StreamPriority};
use transload_executor::{AbsentPages, BlockingKey, Executor, yield_now};

use super::{
    StagedTimeline, StagingRing, Task,
    chunks::{Chunks, chunk_for},
    fresh::Fresh,
    ring::{Staging, User},
    usual_workers,
    waits::{Waits, run_here},
};
use crate::lost::lost_on;

/// Chunks from which on the device takes longer than a task's turn costs.
const LARGE: usize = 1 << 20;

/// One transfer. What it touches was claimed for it: nothing else uses the bytes in conflict until its end.
pub(crate) struct StagedTransfer {
    pub(super) src: RawBuffer,
    pub(super) dst: RawBuffer,
    pub(super) task: Task,
    /// Whose threads' state must be set up before they call it.
    backends: SmallVec<[Arc<dyn Backend>; 2]>,
    /// What must be over before the first byte moves.
    after: SmallVec<[Fence; 8]>,
    /// The ring, for tasks that go through one.
    ring: Option<Arc<StagingRing>>,
    executor: Executor,
    priority: StreamPriority,
    chunks: Chunks,
    /// The destination, if its pages are absent.
    pub(super) fresh: Option<Fresh>,
    /// What was enqueued and is not known to be over: at most one for each staging buffer, and a prefetch.
    operations: Mutex<SmallVec<[Fence; 16]>>,
    /// When the first byte was about to move.
    begun: OnceLock<Instant>,
    pub(super) end: Arc<StagedTimeline>,
}

impl StagedTransfer {
    pub(crate) fn new(
        (src, dst): (RawBuffer, RawBuffer),
        task: Task,
        backends: SmallVec<[Arc<dyn Backend>; 2]>,
        after: SmallVec<[Fence; 8]>,
        ring: Option<Arc<StagingRing>>,
        (executor, priority): (&Executor, StreamPriority),
        end: Arc<StagedTimeline>,
    ) -> Arc<Self> {
        let fresh = match (&task, &ring) {
            (Task::Down(_), Some(ring)) => Fresh::of(&dst, &ring.blocking),
            _ => None,
        };
        let chunk = chunk_for(src.len(), usual_workers());
        // Two chunks of a fresh destination share no huge page.
        let chunk = if fresh.is_some() { chunk.next_multiple_of(AbsentPages::GRAIN) } else { chunk };
        let chunks = Chunks::new(src.len(), chunk);
        let (executor, operations, begun) = (executor.clone(), Mutex::default(), OnceLock::new());
        let transfer = Self {
            src,
            dst,
            task,
            backends,
            after,
            ring,
            executor,
            priority,
            chunks,
            fresh,
            operations,
            begun,
            end,
        };
        let transfer = Arc::new(transfer);
        transfer.end.belongs_to(Arc::downgrade(&transfer));
        transfer
    }

    /// Starts its tasks.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system refuses the first thread.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        let running = Running(Some(Arc::clone(self)));
        self.executor.spawn_detached(self.priority, running.run(async |transfer| transfer.begin().await))
    }

    /// Waits for what the transfer comes after, then takes chunks beside as many other tasks as are of use.
    async fn begin(self: &Arc<Self>) {
        let waits = Waits::Task(&self.executor);
        for fence in &self.after {
            // A failed predecessor is reported by its own transfer; the bytes are at rest either way.
            let _over = waits.fence(fence).await;
        }
        if let Task::OutOfUnified(queue) = &self.task {
            waits.room(&**queue).await;
            let arrived = match self.prefetch(queue, &self.src, DeviceId::Cpu) {
                Ok(fence) => waits.fence(&fence).await,
                Err(error) => Err(error),
            };
            if let Err(error) = arrived {
                // Pages would still migrate one fault at a time; but what could not be done is an error, not a detour.
                return self.fail(error).await;
            }
        }
        self.begun.get_or_init(Instant::now);
        let others = (1..self.useful_tasks())
            .map(|_| Running(Some(Arc::clone(self))).run(async |transfer| transfer.take_turns().await));
        // There is a thread: this one. It wakes the others, which would be too long for the submitter.
        let _always = self.executor.spawn_all(self.priority, others);
        self.take_turns().await;
    }

    /// Returns how many tasks can work at once. Downloads have one for each staging buffer, so that the device fills some
    /// while the host empties others.
    fn useful_tasks(&self) -> usize {
        let most = if let Task::Down(_) = self.task { usual_workers() * 2 } else { usual_workers() };
        self.chunks.left_to_take().min(most)
    }

    /// Moves chunks until none is left. Other tasks have a turn after each.
    async fn take_turns(self: &Arc<Self>) {
        let user = User { id: Arc::as_ptr(self).addr(), is_large: self.chunks.size() >= LARGE };
        while !self.chunks.are_taken() {
            let waits = Waits::Task(&self.executor);
            match &self.ring {
                None => self.move_next(None, waits).await,
                // The buffer comes first: a task that waits for one holds no chunk.
                Some(ring) => match ring.take(&self.executor, user, || !self.chunks.are_taken()).await {
                    Ok(Some(staging)) => self.move_next(Some(staging), waits).await,
                    Ok(None) => return,
                    Err(error) => return self.fail(error).await,
                },
            }
            if !transload_core::mutant!("transfer/turns") {
                yield_now().await;
            }
        }
    }

    async fn move_next(self: &Arc<Self>, staging: Option<Staging>, waits: Waits<'_>) {
        let Some(chunk) = self.take_chunk() else { return };
        let outcome = match staging {
            None => self.move_by_host(chunk.range.clone()),
            // It goes back to the ring before the chunk counts as finished.
            Some(mut staging) => self.move_through(&mut staging, chunk.range.clone(), waits).await,
        };
        chunk.finish(outcome, waits).await;
    }

    fn take_chunk(self: &Arc<Self>) -> Option<Chunk> {
        let range = self.chunks.take()?;
        Some(Chunk { transfer: Arc::clone(self), range, state: ChunkState::Taken })
    }

    /// Fails the transfer from a task that holds no chunk.
    async fn fail(self: &Arc<Self>, error: Error) {
        while let Some(chunk) = self.take_chunk() {
            chunk.finish(Err(error.clone()), Waits::Task(&self.executor)).await;
        }
    }

    /// Ends the transfer, after its last chunk.
    async fn end(&self, waits: Waits<'_>) {
        if let Task::IntoUnified(queue) = &self.task
            && !self.end.has_failed()
        {
            waits.room(&**queue).await;
            if let Err(error) = self.prefetch(queue, &self.dst, self.dst.place().device) {
                self.end.fail(error);
            }
        }
        let operations = std::mem::take(&mut *self.operations.lock());
        for fence in &operations {
            self.note(fence, waits.fence(fence).await);
        }
        if let Some(ring) = &self.ring {
            // Tasks that wait for a buffer in vain would keep this transfer's memory.
            ring.dismiss(std::ptr::from_ref(self).addr());
        }
        self.end.reach(self.begun.get().map(Instant::elapsed).unwrap_or_default());
    }

    /// Takes chunks on the calling thread, which waits for the end, as long as staging buffers are free.
    pub(super) fn help(self: &Arc<Self>) {
        let arrives = matches!(self.task, Task::OutOfUnified(_)) && self.begun.get().is_none();
        // To wait here for predecessors, and for theirs, would go ever deeper.
        if arrives || !self.after.iter().all(Fence::is_known_done) {
            return;
        }
        let _counted = (!transload_core::mutant!("transfer/helpers")).then(|| self.executor.helping());
        self.begun.get_or_init(Instant::now);
        while !self.chunks.are_taken() {
            let staging = match &self.ring {
                None => None,
                Some(ring) => match ring.try_take() {
                    Some(staging) => Some(staging),
                    // The device is behind; or the tasks wait for buffers, too.
                    None => return,
                },
            };
            run_here(self.move_next(staging, Waits::Thread));
        }
    }

    /// Sets up the calling thread for calls into the backends.
    pub(super) fn attach(&self) -> SmallVec<[Option<Box<dyn Any>>; 2]> {
        self.backends.iter().map(|backend| backend.attach_thread()).collect()
    }

    /// Keeps the fence of an operation: the end comes after it, and its failure is the transfer's. Of a timeline that fails
    /// single operations a later fence does not tell it.
    pub(super) fn keep(&self, fence: Fence) {
        let mut over = SmallVec::<[Fence; 4]>::new();
        let mut operations = self.operations.lock();
        operations.retain(|known| {
            let is_over = known.is_known_done();
            if is_over {
                over.push(known.clone());
            }
            !is_over
        });
        operations.push(fence);
        drop(operations);
        over.iter().for_each(|fence| self.note(fence, fence.wait()));
    }

    /// Takes the outcome of an operation.
    fn note(&self, fence: &Fence, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.end.fail(lost_on(fence.timeline().device(), error));
        }
    }

    /// Fails what is left of the transfer on a spare thread, after one of its tasks ended early.
    fn fail_anyway(self: Arc<Self>) {
        let executor = self.executor.clone();
        drop(executor.spawn_blocking(&BlockingKey::new(1), move || {
            for fence in &self.after {
                let _over = fence.wait();
            }
            while let Some(chunk) = self.take_chunk() {
                run_here(chunk.finish(Err(ended_early()), Waits::Thread));
            }
        }));
    }
}

fn ended_early() -> Error {
    Error::new(
        ErrorKind::Interrupted,
        "a task of the staged transfer ended early, by a panic or for want of a waker",
    )
}

/// A task of a transfer. Dropped before it ended, it fails the transfer.
struct Running(Option<Arc<StagedTransfer>>);

impl Running {
    async fn run(mut self, body: impl AsyncFnOnce(&Arc<StagedTransfer>)) {
        if let Some(transfer) = &self.0 {
            body(transfer).await;
        }
        self.0 = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(transfer) = self.0.take() {
            transfer.fail_anyway();
        }
    }
}

/// A chunk that a thread took. Dropped before it was finished, it fails the transfer.
struct Chunk {
    transfer: Arc<StagedTransfer>,
    range: Range<usize>,
    state: ChunkState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    Taken,
    /// The last one, which has yet to end the transfer.
    Ending,
    Finished,
}

impl Chunk {
    /// Counts it as finished. The last one ends the transfer.
    async fn finish(mut self, outcome: Result<()>, waits: Waits<'_>) {
        self.count(outcome);
        if self.state == ChunkState::Ending {
            self.transfer.end(waits).await;
            self.state = ChunkState::Finished;
        }
    }

    fn count(&mut self, outcome: Result<()>) {
        let transfer = &self.transfer;
        if let Err(error) = outcome {
            transfer.end.fail(error);
            transfer.chunks.cancel();
        }
        self.state = if transfer.chunks.finish() { ChunkState::Ending } else { ChunkState::Finished };
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if self.state == ChunkState::Taken {
            self.count(Err(ended_early()));
        }
        if self.state == ChunkState::Ending {
            let transfer = Arc::clone(&self.transfer);
            let executor = transfer.executor.clone();
            drop(executor.spawn_blocking(&BlockingKey::new(1), move || {
                transfer.end.fail(ended_early());
                run_here(transfer.end(Waits::Thread));
            }));
        }
    }
}
