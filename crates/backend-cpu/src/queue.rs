//! A queue as its users see it.

use std::sync::Arc;

use transload_core::{
    DeviceId, Error, ErrorKind, Fence, Operation, Place, Queue, Result, StreamPriority, Timeline, Timing,
};
use transload_executor::Executor;

use crate::{copy, costs, op_queue::OpQueue, queued_op::QueuedOp};

/// An operation of at most so many bytes is done at once where nothing stands before it: waking a worker took up to
/// 250 µs where it was measured (a virtual machine with 16 processors), in which one core copies about as much.
pub(crate) const MAX_INLINE: usize = 2 << 20;

/// An ordered line of work. Its executor's threads stay as long as it does, also where the backend was dropped.
pub(crate) struct CpuQueue {
    ops: Arc<OpQueue>,
    timeline: Arc<dyn Timeline>,
}

impl CpuQueue {
    pub(crate) fn new(priority: StreamPriority, executor: Executor, parallel_from: usize) -> Self {
        let ops = Arc::new(OpQueue::new(priority, executor, parallel_from));
        let timeline: Arc<dyn Timeline> = ops.clone();
        Self { ops, timeline }
    }

    pub(crate) fn ops(&self) -> &Arc<OpQueue> {
        &self.ops
    }
}

// SAFETY: a line does its work in order, each after what it must wait for, and counts it when it is done.
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
        if let Operation::Copy { src, dst } = operation
            && src.len() != dst.len()
        {
            let text = format!("source has {} bytes, destination {}; both must agree", src.len(), dst.len());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        // What was enqueued before on this line is before it anyway.
        let id = self.timeline.id();
        let open = after.iter().filter(|fence| fence.timeline().id() != id && !fence.is_known_complete());
        // Before the operation: the line keeps the outcomes that a handle may ask for.
        let timeline = Arc::clone(&self.timeline);
        let point = if copy::bytes(operation) <= MAX_INLINE && open.clone().next().is_none() {
            // SAFETY: the caller's promise.
            unsafe { self.ops.run_inline(operation, timing) }
        } else {
            None
        };
        let point = match point {
            Some(point) => point,
            None => self.ops.push(QueuedOp::new(operation, open.cloned(), timing)?),
        };
        Ok(Fence::new(timeline, point))
    }

    fn outstanding(&self) -> u64 {
        self.ops.outstanding()
    }
}
