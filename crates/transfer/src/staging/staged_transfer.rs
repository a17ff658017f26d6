//! A staged transfer in flight. Executor tasks copy its chunks, interleaved with those of other transfers.

use std::{
    any::Any,
    mem,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{
    Backend, DeviceId, Error, ErrorKind, Fence, Operation, QueueLease, RawBuffer, Result, StreamPriority,
    Timing, TransferId, TransferScope,
};

use super::{
    Pieces, RingHold, StagedKind, StagedTimeline, StagingRing, StagingTuning, ThroughDevice,
    chunk_copy::ChunkCopy,
    chunks::{Chunks, EVEN, even_chunk},
    default_workers,
    fresh::{STEP, is_absent},
    parts::{Parts, is_in_parts},
    ring::CAPACITY,
    wait_mode::{WaitMode, block_on_thread, room},
};
use crate::{
    built_in::{LARGE_CHUNK, PARTED, PARTED_INTO_CACHES, SHORT_THREADS},
    report_events,
    stats::lost::name_lost_device,
};

/// One transfer. Its ranges are claimed, so no conflicting work runs until its end.
pub(crate) struct StagedTransfer {
    pub(super) id: Option<TransferId>,
    pub(super) pieces: Pieces,
    pub(super) kind: StagedKind,
    /// Whether a copy kernel copies from and to the staging buffers.
    pub(super) in_place: bool,
    pub(super) through_device: Option<ThroughDevice>,
    /// Whether several threads copy each chunk.
    pub(super) has_parts: bool,
    /// Whether it is a download of more than a chunk to memory that was never touched.
    pub(super) is_fresh: bool,
    pub(super) ring: Arc<StagingRing>,
    pub(super) tuning: StagingTuning,
    /// `Some` until the end.
    hold: Mutex<Option<RingHold>>,
    pub(super) priority: StreamPriority,
    /// Whether the thread that submitted it waits for its end at once.
    is_waited_for: bool,
    /// Backends to attach a thread to before it calls them.
    backends: SmallVec<[Arc<dyn Backend>; 2]>,
    /// Fences to wait for before the first byte moves.
    dependencies: SmallVec<[Fence; 8]>,
    pub(super) chunks: Chunks,
    /// Staging buffers in use, counted by the ring.
    pub(super) buffers_in_use: AtomicUsize,
    /// Chunks of an upload that were taken and that the host has not copied yet.
    pub(super) on_host: AtomicUsize,
    /// Chunks whose parts any thread may copy.
    pub(super) parts: Mutex<SmallVec<[Arc<Parts>; 2]>>,
    /// Tasks that copy parts.
    pub(super) helpers: AtomicUsize,
    /// Operations that may be incomplete and that no task waits for.
    pub(super) pending: Mutex<SmallVec<[Fence; 2]>>,
    /// Whether a thread moves, or moved, what is copied to where the chunks find it.
    is_begun: AtomicBool,
    /// Whether the ring has it, or had it.
    is_in_ring: AtomicBool,
    /// Time just before the first byte moved.
    started_at: OnceLock<Instant>,
    pub(super) timeline: Arc<StagedTimeline>,
}

impl StagedTransfer {
    pub(crate) fn new(
        pieces: Pieces,
        (kind, in_place, through_device): (StagedKind, bool, Option<ThroughDevice>),
        backends: SmallVec<[Arc<dyn Backend>; 2]>,
        dependencies: SmallVec<[Fence; 8]>,
        hold: RingHold,
        (id, priority, is_waited_for): (Option<TransferId>, StreamPriority, bool),
        timeline: Arc<StagedTimeline>,
    ) -> Arc<Self> {
        let is_download = matches!(kind, StagedKind::Download(_));
        let is_fresh = is_download && pieces.bytes() > CAPACITY && is_fresh(&pieces);
        let has_parts = match &kind {
            _ if through_device.is_some() => true,
            StagedKind::Upload(_) => true,
            StagedKind::Download(_) => {
                is_in_parts(pieces.bytes(), hold.is_shared && !is_waited_for) && !is_fresh
            }
            _ => false,
        };
        let tuning = hold.tuning;
        let chunk = match &kind {
            _ if is_fresh => even_chunk(pieces.bytes(), EVEN).min(STEP),
            StagedKind::Upload(_) | StagedKind::Download(_) => CAPACITY,
            _ => even_chunk(pieces.bytes(), EVEN),
        };
        let chunks = Chunks::new(pieces.bytes(), chunk);
        let (buffers_in_use, on_host) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (parts, helpers) = (Mutex::default(), AtomicUsize::new(0));
        let (pending, started_at) = (Mutex::default(), OnceLock::new());
        let (ring, hold) = (Arc::clone(&hold), Mutex::new(Some(hold)));
        let transfer = Self {
            id,
            pieces,
            kind,
            in_place,
            through_device,
            has_parts,
            is_fresh,
            ring,
            tuning,
            hold,
            priority,
            is_waited_for,
            backends,
            dependencies,
            chunks,
            buffers_in_use,
            on_host,
            parts,
            helpers,
            pending,
            is_begun: AtomicBool::new(false),
            is_in_ring: AtomicBool::new(false),
            started_at,
            timeline,
        };
        let transfer = Arc::new(transfer);
        transfer.timeline.set_transfer(Arc::downgrade(&transfer));
        transfer
    }

    /// Spawns the first task, unless it is left to the thread that waits, which is awake.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system refuses the first thread.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        let is_between = matches!(self.kind, StagedKind::Upload(_) | StagedKind::Download(_));
        let is_ready = self.dependencies.iter().all(Fence::is_known_complete);
        if self.is_waited_for && is_between && is_ready {
            self.ring.executor().start_first()?;
            self.timeline.leave(Arc::clone(self));
            return Ok(());
        }
        self.spawn()
    }

    /// Spawns the first task.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system refuses the first thread.
    pub(super) fn spawn(self: &Arc<Self>) -> Result<()> {
        let transfer = Arc::clone(self);
        self.ring.executor().spawn_detached(self.priority, async move {
            if let Some(first) = transfer.begin().await {
                drop(transfer);
                first.run().await;
            }
        })
    }

    /// Waits for the dependencies, then adds the transfer to the ring. Returns a chunk for the caller to copy.
    async fn begin(self: &Arc<Self>) -> Option<ChunkCopy> {
        let waits = WaitMode::Task(self.ring.executor());
        for fence in &self.dependencies {
            // A failed dependency is reported by its own transfer; the bytes are idle either way.
            if let Err(error) = waits.fence(fence).await {
                report_events::dependency_failed(self.id, &error);
            }
        }
        if !self.begin_chunks(waits).await {
            return None;
        }
        self.enter_ring(Some(self.priority))
    }

    /// Moves what is copied to where the chunks find it, unless another thread does. Returns whether the caller may go on.
    async fn begin_chunks(&self, waits: WaitMode<'_>) -> bool {
        if self.is_begun.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Err(error) = self.before_chunks(waits).await {
            self.fail(error).await;
            return false;
        }
        self.started_at.get_or_init(Instant::now);
        true
    }

    /// Adds the transfer to the ring, once. Returns a chunk of priority `mine` for the caller to copy, if any.
    fn enter_ring(self: &Arc<Self>, mine: Option<StreamPriority>) -> Option<ChunkCopy> {
        if self.is_in_ring.swap(true, Ordering::AcqRel) { None } else { self.ring.add(self, mine) }
    }

    /// Returns whether the ring may try to take a chunk.
    pub(super) fn can_take_chunk(&self) -> bool {
        self.buffers_wanted() > 0 || self.chunks.are_taken()
    }

    /// Returns the number of further staging buffers that it can use.
    pub(super) fn buffers_wanted(&self) -> usize {
        let buffers_in_use = self.buffers_in_use.load(Ordering::Relaxed);
        let is_large = self.chunks.size() >= LARGE_CHUNK;
        let threads = if is_large { default_workers() } else { default_workers().min(SHORT_THREADS) };
        let most = if self.is_upload() {
            let on_host = self.on_host.load(Ordering::Relaxed);
            let parted = if self.is_into_caches() { PARTED_INTO_CACHES } else { PARTED };
            self.ring.max_per_transfer().saturating_sub(buffers_in_use).min(parted.saturating_sub(on_host))
        } else {
            // The device fills buffers while the host empties others.
            let most = self.ring.max_per_transfer();
            let most = match self.kind {
                _ if !is_large => threads,
                StagedKind::Download(_) => most.min(self.tuning.download_buffers as usize),
                _ => most,
            };
            most.saturating_sub(buffers_in_use)
        };
        self.chunks.left_to_take().min(most)
    }

    /// Returns whether the host copies each chunk before the device does.
    pub(super) fn is_upload(&self) -> bool {
        matches!(self.kind, StagedKind::Upload(_))
    }

    /// Whether the device's side of a chunk is one copy.
    pub(super) fn is_contiguous(&self) -> bool {
        self.through_device.is_some() || self.pieces.single().is_some()
    }

    /// Keeps the error of a chunk, after which no further one is taken.
    pub(super) fn note(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.timeline.fail(error);
            self.chunks.cancel();
            self.ring.forget(self);
        }
    }

    /// Fails the transfer. The caller holds no chunk.
    pub(super) async fn fail(&self, error: Error) {
        if self.chunks.take().is_some() {
            self.note(Err(error));
            if self.chunks.finish() {
                self.end(WaitMode::Task(self.ring.executor())).await;
            }
        }
    }

    /// Completes the transfer after its last chunk.
    pub(super) async fn end(&self, waits: WaitMode<'_>) {
        if !self.timeline.has_failed()
            && let Err(error) = self.after_chunks(waits).await
        {
            self.timeline.fail(error);
        }
        // A kernel that no chunk came after, once they were cancelled.
        let left = mem::take(&mut *self.pending.lock());
        for fence in left.iter().filter(|_| !transload_core::mutant!("transfer/staged-gather-is-over")) {
            // Its failure is told by the chunks.
            let _over = waits.fence(fence).await;
        }
        // Before, so that who saw the end finds the ring unused.
        drop(self.hold.lock().take());
        self.timeline.complete(self.started_at.get().map(Instant::elapsed).unwrap_or_default());
    }

    /// Moves what is copied from to where the chunks find it.
    async fn before_chunks(&self, waits: WaitMode<'_>) -> Result<()> {
        match (&self.kind, self.pieces.single()) {
            (StagedKind::Download(_), _) => self.gather(waits).await,
            // The copies would still work without it, one page fault at a time; but its error is reported.
            (StagedKind::FromUnified(queue), Some((src, _))) => {
                self.prefetch(queue, src, DeviceId::Cpu, waits).await
            }
            _ => Ok(()),
        }
    }

    /// Moves what the chunks copied to where it is to be.
    async fn after_chunks(&self, waits: WaitMode<'_>) -> Result<()> {
        match (&self.kind, self.pieces.single()) {
            (StagedKind::ToUnified(queue), Some((_, dst))) => {
                self.prefetch(queue, dst, dst.place().device, waits).await
            }
            _ => Ok(()),
        }
    }

    async fn prefetch(
        &self,
        queue: &QueueLease,
        buffer: &RawBuffer,
        to: DeviceId,
        waits: WaitMode<'_>,
    ) -> Result<()> {
        let prefetch = || {
            // SAFETY: a prefetch keeps the bytes; the buffer is claimed until the transfer's end, which waits for the
            // fence.
            unsafe { queue.enqueue(&Operation::Prefetch { buffer, to }, &[], Timing::Off) }
        };
        self.complete(queue, prefetch, waits).await
    }

    /// Enqueues an operation on the queue, and waits until it is complete.
    async fn complete(
        &self,
        queue: &QueueLease,
        enqueue: impl FnOnce() -> Result<Fence>,
        waits: WaitMode<'_>,
    ) -> Result<()> {
        room(&**queue, waits).await;
        let end = {
            let _attached = self.attach();
            enqueue()
        };
        let name_lost = |error| name_lost_device(queue.device(), error);
        let end = end.map_err(name_lost)?;
        self.pending.lock().push(end.clone());
        waits.fence(&end).await.map_err(name_lost)
    }

    /// Copies chunks on the calling thread, which waits for the end, while staging buffers are free. `begins`: the first task was
    /// left to it.
    pub(super) fn help(self: &Arc<Self>, begins: bool) {
        let is_begun = self.started_at.get().is_some();
        let arrives = matches!(self.kind, StagedKind::FromUnified(_)) && !is_begun;
        // Do not help a transfer whose dependencies are running: this would recurse through their waits.
        if arrives || !self.dependencies.iter().all(Fence::is_known_complete) {
            return;
        }
        let _counted = (!transload_core::mutant!("transfer/helpers")).then(|| self.ring.executor().helping());
        // Downloads of lists are gathered by the device first.
        let is_gathered = self.is_upload() || self.through_device.is_none();
        let may_begin = begins || !is_begun && !is_gathered;
        if may_begin && !block_on_thread(self.begin_chunks(WaitMode::Thread)) {
            return;
        }
        self.started_at.get_or_init(Instant::now);
        let mut first = if begins { self.ring.take(self) } else { None };
        if !self.is_upload() {
            // The device begins now, not when a worker has woken. An upload begins by the copy of this thread.
            first.iter_mut().for_each(|first| first.start(true));
        }
        if begins || !self.is_upload() {
            let _none = self.enter_ring(None);
        }
        // Starts the next chunk while the device copies this one. Of fresh memory it has one at a time: a thread has most to do to fault
        // it in, and others have woken since.
        let mut started = None;
        loop {
            let is_busy = self.is_fresh && started.is_some();
            let take = || if is_busy { None } else { self.ring.take(self) };
            let next = first.take().or_else(take).map(|mut next| {
                next.start(true);
                self.ring.start_further(self);
                next
            });
            let is_last = next.is_none();
            if let Some(started) = mem::replace(&mut started, next) {
                let _none = block_on_thread(ChunkCopy::finish(started, WaitMode::Thread));
            } else if is_last {
                // Of chunks that others have.
                while self.copy_part() {}
                return;
            }
        }
    }

    /// Prepares the calling thread for calls of the backends, on behalf of the transfer.
    pub(super) fn attach(&self) -> Attached {
        let backends = self.backends.iter().map(|backend| backend.attach_thread()).collect();
        Attached { _backends: backends, _scope: TransferScope::enter(self.id) }
    }

    /// Leaves the ring after one of its tasks ended early, with these copies in flight. Dropping the last handle then
    /// fails the transfer.
    pub(super) fn abandon(&self, copies: &[Fence]) {
        self.pending.lock().extend(copies.iter().cloned());
        self.chunks.cancel();
        self.ring.forget(self);
    }
}

impl Drop for StagedTransfer {
    /// Fails the transfer if one of its tasks ended early.
    fn drop(&mut self) {
        if !self.timeline.is_complete() {
            let text = "a task of the staged transfer ended early, by a panic or for want of a waker";
            self.timeline.fail(Error::new(ErrorKind::Interrupted, text));
            let mut left = mem::take(&mut self.dependencies);
            left.append(self.pending.get_mut());
            self.timeline.complete_after(left);
        }
    }
}

/// Returns whether the destination on the host of the only pair was never touched. Threads that fault in one huge page each clear it: 16 MiB
/// come in parts at a third of the rate of eight chunks, one for a thread, and in four chunks at two thirds; 256 MiB by a huge page at 41
/// instead of 35 GB/s by two.
fn is_fresh(pieces: &Pieces) -> bool {
    let address = pieces.single().and_then(|(_, dst)| Some((dst.host_address()?, dst.len())));
    address.is_some_and(|(address, bytes)| is_absent(address.as_ptr(), bytes))
        && !transload_core::mutant!("transfer/fresh-in-chunks")
}

/// A thread that is prepared for calls of the backends.
pub(super) struct Attached {
    _backends: SmallVec<[Option<Box<dyn Any>>; 2]>,
    _scope: Option<TransferScope>,
}
