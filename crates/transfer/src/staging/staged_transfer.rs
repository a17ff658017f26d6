//! A staged transfer under way: its chunks are moved, in turn with those of others, by tasks of the executor.

use std::{
    any::Any,
    mem,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{
    Backend, DeviceId, Error, ErrorKind, Fence, Operation, QueueLease, RawBuffer, Result, StreamPriority,
    Timing,
};

use super::{
    StagedKind, StagedTimeline, StagingRing,
    chunk_copy::ChunkCopy,
    chunks::{Chunks, chunk_for},
    default_workers,
    wait_mode::{WaitMode, block_on_thread, room},
};
use crate::stats::lost::name_lost_device;

/// Chunks from which on the device takes longer than a task's turn costs.
const LARGE: usize = 1 << 20;
/// Staging buffers that a transfer of smaller chunks uses at once.
const FEW: usize = 6;

/// One transfer. What it touches was claimed for it: nothing else uses the bytes in conflict until its end.
pub(crate) struct StagedTransfer {
    pub(super) src: RawBuffer,
    pub(super) dst: RawBuffer,
    pub(super) kind: StagedKind,
    /// Whether the device's own processors copy from and to the staging buffers.
    pub(super) in_place: bool,
    pub(super) ring: Arc<StagingRing>,
    pub(super) priority: StreamPriority,
    /// Whose threads' state must be set up before they call it.
    backends: SmallVec<[Arc<dyn Backend>; 2]>,
    /// What must be over before the first byte moves.
    dependencies: SmallVec<[Fence; 8]>,
    pub(super) chunks: Chunks,
    /// How many staging buffers it uses; the ring counts them.
    pub(super) buffers_in_use: AtomicUsize,
    /// Operations that are not known to be over and that no task waits for.
    pending: Mutex<SmallVec<[Fence; 2]>>,
    /// When the first byte was about to move.
    started_at: OnceLock<Instant>,
    pub(super) timeline: Arc<StagedTimeline>,
}

impl StagedTransfer {
    pub(crate) fn new(
        (src, dst): (RawBuffer, RawBuffer),
        (kind, in_place): (StagedKind, bool),
        backends: SmallVec<[Arc<dyn Backend>; 2]>,
        dependencies: SmallVec<[Fence; 8]>,
        ring: Arc<StagingRing>,
        priority: StreamPriority,
        timeline: Arc<StagedTimeline>,
    ) -> Arc<Self> {
        let chunks = Chunks::new(src.len(), chunk_for(src.len(), default_workers()));
        let (buffers_in_use, pending, started_at) = (AtomicUsize::new(0), Mutex::default(), OnceLock::new());
        let transfer = Self {
            src,
            dst,
            kind,
            in_place,
            ring,
            priority,
            backends,
            dependencies,
            chunks,
            buffers_in_use,
            pending,
            started_at,
            timeline,
        };
        let transfer = Arc::new(transfer);
        transfer.timeline.set_transfer(Arc::downgrade(&transfer));
        transfer
    }

    /// Starts it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system refuses the first thread.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        let transfer = Arc::clone(self);
        self.ring.executor().spawn_detached(self.priority, async move {
            if let Some(first) = transfer.begin().await {
                drop(transfer);
                first.run().await;
            }
        })
    }

    /// Waits for what the transfer comes after, then has its chunks moved. Returns one for the caller to move.
    async fn begin(self: &Arc<Self>) -> Option<ChunkCopy> {
        let waits = WaitMode::Task(self.ring.executor());
        for fence in &self.dependencies {
            // A failed predecessor is reported by its own transfer; the bytes are at rest either way.
            let _over = waits.fence(fence).await;
        }
        if let StagedKind::FromUnified(queue) = &self.kind
            && let Err(error) = self.prefetch(queue, &self.src, DeviceId::Cpu, waits).await
        {
            // Pages would still migrate one fault at a time; but what could not be done is an error, not a detour.
            self.fail(error).await;
            return None;
        }
        self.started_at.get_or_init(Instant::now);
        self.ring.add(self)
    }

    /// Returns whether another chunk may be taken.
    pub(super) fn can_take_chunk(&self) -> bool {
        self.buffers_wanted() > 0 || self.chunks.are_taken()
    }

    /// Returns how many further staging buffers are of use.
    pub(super) fn buffers_wanted(&self) -> usize {
        let buffers_in_use = self.buffers_in_use.load(Ordering::Relaxed);
        // The device fills some buffers while the host empties others, or the other way round, where chunks are so large that
        // this takes longer than a task's turn. More threads than six make smaller ones no faster: 3 MiB take 175 µs up and
        // 210 down by six, 195 and 235 by eight, 240 and 300 by twelve (on an H200 with 16 processors).
        let most = if self.chunks.size() >= LARGE {
            self.ring.max_per_transfer()
        } else {
            default_workers().min(FEW)
        };
        self.chunks.left_to_take().min(most.saturating_sub(buffers_in_use))
    }

    /// Counts a taken chunk as moved, or not. Of the last one it returns `true`: the caller [ends](Self::end) the transfer.
    pub(super) fn finish_chunk(&self, outcome: Result<()>) -> bool {
        if let Err(error) = outcome {
            self.timeline.fail(error);
            self.chunks.cancel();
            self.ring.forget(self);
        }
        self.chunks.finish()
    }

    /// Fails the transfer from a task that holds no chunk.
    pub(super) async fn fail(&self, error: Error) {
        if self.chunks.take().is_some() && self.finish_chunk(Err(error)) {
            self.end(WaitMode::Task(self.ring.executor())).await;
        }
    }

    /// Ends the transfer, after its last chunk.
    pub(super) async fn end(&self, waits: WaitMode<'_>) {
        if let StagedKind::ToUnified(queue) = &self.kind
            && !self.timeline.has_failed()
            && let Err(error) = self.prefetch(queue, &self.dst, self.dst.place().device, waits).await
        {
            self.timeline.fail(error);
        }
        self.timeline.complete(self.started_at.get().map(Instant::elapsed).unwrap_or_default());
    }

    /// Moves unified memory to the host before the first chunk, or to its device after the last one.
    async fn prefetch(
        &self,
        queue: &QueueLease,
        buffer: &RawBuffer,
        to: DeviceId,
        waits: WaitMode<'_>,
    ) -> Result<()> {
        room(&**queue, waits).await;
        let moved = {
            let _attached = self.attach();
            // SAFETY: moving pages keeps their bytes; the buffer is claimed until the transfer's end, which waits for the
            // fence.
            unsafe { queue.enqueue(&Operation::Prefetch { buffer, to }, &[], Timing::Off) }?
        };
        self.pending.lock().push(moved.clone());
        waits.fence(&moved).await.map_err(|error| name_lost_device(queue.device(), error))
    }

    /// Takes chunks on the calling thread, which waits for the end, as long as staging buffers are free.
    pub(super) fn help(self: &Arc<Self>) {
        let arrives = matches!(self.kind, StagedKind::FromUnified(_)) && self.started_at.get().is_none();
        // To wait here for predecessors, and for theirs, would go ever deeper.
        if arrives || !self.dependencies.iter().all(Fence::is_known_complete) {
            return;
        }
        let _counted = (!transload_core::mutant!("transfer/helpers")).then(|| self.ring.executor().helping());
        self.started_at.get_or_init(Instant::now);
        // One more is started while the device has another.
        let mut started = None;
        loop {
            let next = self.ring.take(self).map(|mut next| {
                next.start(true);
                next
            });
            let is_last = next.is_none();
            if let Some(started) = mem::replace(&mut started, next) {
                let _none = block_on_thread(ChunkCopy::finish(started, WaitMode::Thread));
            } else if is_last {
                return;
            }
        }
    }

    /// Sets up the calling thread for calls into the backends.
    pub(super) fn attach(&self) -> SmallVec<[Option<Box<dyn Any>>; 2]> {
        self.backends.iter().map(|backend| backend.attach_thread()).collect()
    }

    /// Leaves the ring, since one of its tasks ended early and left these copies: the drop of the last handle fails the transfer.
    pub(super) fn abandon(&self, copies: &[Fence]) {
        self.pending.lock().extend(copies.iter().cloned());
        self.chunks.cancel();
        self.ring.forget(self);
    }
}

impl Drop for StagedTransfer {
    /// Fails it if it did not end, since one of its tasks ended early.
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
