//! The `Queue` of this backend.

use std::sync::Arc;

use transload_core::{
    DeviceId, Error, ErrorKind, Fence, Operation, Place, Queue, Result, SinkSlot, Stamp, StreamPriority,
    Timeline, Timing,
};
use transload_executor::Executor;

use crate::{
    copy, costs,
    op_queue::{OpQueue, Thresholds},
    queued_op::QueuedOp,
};

/// Largest operation, in bytes, that runs inline on an idle queue. Waking a worker took up to 250 µs (measured on a
/// virtual machine with 16 processors), in which one core copies about as much.
pub(crate) const MAX_INLINE: usize = 2 << 20;

/// A queue. It keeps its executor's threads, even after the backend was dropped.
pub(crate) struct CpuQueue {
    ops: Arc<OpQueue>,
    timeline: Arc<dyn Timeline>,
}

impl CpuQueue {
    pub(crate) fn new(
        priority: StreamPriority,
        executor: Executor,
        thresholds: Thresholds,
        sink: Arc<SinkSlot>,
    ) -> Self {
        let ops = OpQueue::new(priority, executor, thresholds, sink);
        let timeline: Arc<dyn Timeline> = ops.clone();
        Self { ops, timeline }
    }

    pub(crate) fn ops(&self) -> &Arc<OpQueue> {
        &self.ops
    }
}

// SAFETY: operations run in order, each after its fences, and reach their points when they are complete.
unsafe impl Queue for CpuQueue {
    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn priority(&self) -> StreamPriority {
        self.ops.priority()
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    fn can_copy(&self, src: Place, dst: Place) -> bool {
        costs::is_reachable(src) && costs::is_reachable(dst)
    }

    fn can_wait_for(&self, _fence: &Fence) -> bool {
        true
    }

    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence> {
        copy::check(operation)?;
        let operation = &copy::plain(operation);
        if let Operation::Copy { src, dst } = operation
            && src.len() != dst.len()
        {
            let text = format!("source has {} bytes, destination {}; both must agree", src.len(), dst.len());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        // Earlier operations of this queue come first anyway.
        let id = self.timeline.id();
        let open = after.iter().filter(|fence| fence.timeline().id() != id && !fence.is_known_complete());
        if open.clone().next().is_some() && !transload_core::mutant!("cpu/waits-need-a-thread") {
            // Without a worker the operation would be given up at once, and its point reached before what it follows.
            self.ops.start_first()?;
        }
        // Cloned before the operation: failures are kept while a handle may query them.
        let timeline = Arc::clone(&self.timeline);
        let mut sample = self.ops.sample(operation);
        let point = if copy::bytes(operation) <= MAX_INLINE && open.clone().next().is_none() {
            // SAFETY: the caller's promise.
            unsafe { self.ops.run_inline(operation, timing, &mut sample) }
        } else {
            None
        };
        let point = match point {
            Some(point) => point,
            None => self.ops.push(QueuedOp::new(operation, open.cloned(), (timing, sample))?),
        };
        Ok(Fence::new(timeline, point))
    }

    fn stamp(&self) -> Result<Stamp> {
        Ok(self.ops.stamp())
    }

    fn outstanding(&self) -> u64 {
        self.ops.outstanding()
    }
}
