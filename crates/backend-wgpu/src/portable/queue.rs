//! The `Queue` of these devices.

use std::sync::{Arc, atomic::Ordering};

use transload_core::{
    DeviceId, Fence, Operation, Place, Queue, Result, StreamPriority, Timeline, Timing, mutant,
};

use super::{DeviceState, copy};

/// A lease of the device's queue. All leases share one wgpu queue and its timeline, so the priority has no effect.
pub(super) struct PortableQueue {
    device: Arc<DeviceState>,
    timeline: Arc<dyn Timeline>,
    priority: StreamPriority,
}

impl PortableQueue {
    pub(super) fn new(device: Arc<DeviceState>, priority: StreamPriority) -> Self {
        let timeline: Arc<dyn Timeline> = Arc::clone(&device.queue) as _;
        Self { device, timeline, priority }
    }
}

// SAFETY: submissions run in order, each after everything submitted before; the host waits for fences of others. A point is that of the
// operation's last submission.
unsafe impl Queue for PortableQueue {
    fn device(&self) -> DeviceId {
        self.device.id()
    }

    fn priority(&self) -> StreamPriority {
        self.priority
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    fn can_copy(&self, src: Place, dst: Place) -> bool {
        self.device.can_copy(src, dst)
    }

    fn can_wait_for(&self, fence: &Fence) -> bool {
        fence.timeline().id() == self.timeline.id()
    }

    /// Measures nothing: wgpu's timestamps are no part of WebGPU's core.
    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], _timing: Timing) -> Result<Fence> {
        self.device.queue.check_usable()?;
        self.device.queue.refuse_callback()?;
        for fence in after.iter().filter(|fence| !self.can_wait_for(fence) && !mutant!("wgpu/portable-after"))
        {
            // Failed work reports its own error; either way it is complete.
            let _over = fence.wait();
        }
        // SAFETY: the caller's promise. What comes before is on this queue, or complete.
        let point = unsafe { copy::perform(&self.device, operation) }?;
        Ok(Fence::new(Arc::clone(&self.timeline), point))
    }

    fn outstanding(&self) -> u64 {
        // In this order, so that the difference is never negative.
        let reached = self.device.queue.reached();
        self.device.queue.enqueued().saturating_sub(reached)
    }

    fn released(&self) {
        self.device.leases.fetch_sub(1, Ordering::Relaxed);
    }
}
