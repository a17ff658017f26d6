//! A queue whose operations do nothing: what remains of a submission is core's claims and commits.

use std::{
    any::Any,
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use transload_core::{
    DeviceId, Fence, Operation, Place, Queue, Result, StreamPriority, Timeline, TimelineId, Timing,
    next_timeline_id,
};

struct NoOpTimeline {
    id: TimelineId,
    reached: AtomicU64,
}

// SAFETY: the operations of its queue touch no memory.
unsafe impl Timeline for NoOpTimeline {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        Ok(self.reached() >= point)
    }

    fn wait(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn wake_at(&self, _: u64, _: &Waker) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The queue. Its operations are in flight until [`complete`](Self::complete).
pub(crate) struct NoOpQueue {
    own: Arc<NoOpTimeline>,
    timeline: Arc<dyn Timeline>,
    last: AtomicU64,
    reads: Arc<[u64]>,
}

impl NoOpQueue {
    /// Creates a queue whose operations read these numbers, one of each cache line.
    pub(crate) fn reading(reads: &Arc<[u64]>) -> Self {
        let own = Arc::new(NoOpTimeline { id: next_timeline_id(), reached: AtomicU64::new(0) });
        Self { timeline: own.clone(), own, last: AtomicU64::new(0), reads: Arc::clone(reads) }
    }

    /// Reads what an operation reads.
    pub(crate) fn read(&self) {
        black_box(self.reads.iter().step_by(8).sum::<u64>());
    }

    /// Completes all operations enqueued so far.
    pub(crate) fn complete(&self) {
        self.own.reached.store(self.last.load(Ordering::Relaxed), Ordering::Release);
    }
}

// SAFETY: an operation does nothing to its buffers.
unsafe impl Queue for NoOpQueue {
    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn priority(&self) -> StreamPriority {
        StreamPriority::Normal
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    fn can_copy(&self, _: Place, _: Place) -> bool {
        true
    }

    fn can_wait_for(&self, _: &Fence) -> bool {
        true
    }

    unsafe fn enqueue(&self, _: &Operation<'_>, _: &[Fence], _: Timing) -> Result<Fence> {
        self.read();
        let point = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Fence::new(Arc::clone(&self.timeline), point))
    }

    fn outstanding(&self) -> u64 {
        0
    }
}
