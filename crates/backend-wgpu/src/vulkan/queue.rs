//! The `Queue` of this backend.

use std::sync::{Arc, atomic::Ordering};

use smallvec::SmallVec;
use transload_core::{
    DeviceId, Fence, Operation, OperationInfo, Place, Queue, Result, Stamp, StreamPriority, Timeline, Timing,
    mutant,
};

use super::{
    clock::WgpuClock,
    copy,
    state::{DeviceState, Line},
    timer::Timer,
    timestamps::Interval,
};

/// A lease of one of the device's queues. All leases of one share its timeline: the priority has chosen the queue.
pub(crate) struct WgpuQueue {
    device: Arc<DeviceState>,
    line: Arc<Line>,
    timeline: Arc<dyn Timeline>,
    priority: StreamPriority,
}

impl WgpuQueue {
    /// Creates a queue, which is not counted as leased.
    pub(crate) fn new(device: &Arc<DeviceState>, line: &Arc<Line>, priority: StreamPriority) -> Self {
        let timeline: Arc<dyn Timeline> = Arc::clone(&line.queue) as _;
        Self { device: Arc::clone(device), line: Arc::clone(line), timeline, priority }
    }

    fn stamp_of(&self, slot: u32) -> Stamp {
        Stamp::new(Arc::clone(&self.device.clock) as _, WgpuClock::token(self.line.index, slot))
    }
}

// SAFETY: submissions run in order, each after everything submitted before, and after values of the device's other queues; the host waits
// for fences of others. A point is that of the operation's last submission.
unsafe impl Queue for WgpuQueue {
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
        fence.timeline().id() == self.timeline.id() || self.device.awaited(&self.line, fence).is_some()
    }

    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence> {
        let (sink, Line { queue, tally, .. }) = (&self.device.sink, &*self.line);
        queue.check_usable()?;
        #[cfg(feature = "cuda")]
        let between = self.device.between.get().filter(|between| between.copies(operation));
        #[cfg(not(feature = "cuda"))]
        let between: Option<()> = None;
        // CUDA's part waits for nothing on the device: the calling thread waits, also a task's, for work that was submitted before.
        let waits = |fence: &Fence| match between {
            Some(_) => fence.timeline().id() == self.timeline.id(),
            None => self.can_wait_for(fence),
        };
        for fence in after.iter().filter(|fence| !waits(fence) && !mutant!("wgpu/come-after")) {
            // Failed work reports its own error; either way it is complete.
            let _over = fence.wait();
        }
        let awaited = self.device.awaited_of(&self.line, after);
        let info = || OperationInfo::of(operation);
        let sample = sink.sample(tally, info);
        // Without timestamps nothing is measured, and the sink only counts.
        let (timer, is_ready) = match between {
            #[cfg(feature = "cuda")]
            Some(between) => between.timer(&self.device, &self.line, operation),
            _ => (Timer { begin: &self.line, end: &self.line }, true),
        };
        let reserve = |is_wanted| if is_wanted && is_ready { timer.reserve().ok() } else { None };
        let (kept, passed) = (reserve(timing == Timing::Measured), reserve(sample.is_some()));
        let measured: SmallVec<[Interval; 2]> = kept.into_iter().chain(passed).collect();
        let performed = match between {
            // SAFETY: as below.
            #[cfg(feature = "cuda")]
            Some(between) => unsafe { between.copy(&self.device, &self.line, operation, (timer, &measured)) },
            // SAFETY: the caller's promise. What comes before is on this queue, awaited, or complete.
            _ => unsafe { copy::perform(&self.device, &self.line, operation, (&awaited, &measured)) }
                .map(|point| (point, true)),
        };
        let release = || measured.iter().for_each(|interval| timer.release(*interval));
        let (point, is_measured) = performed.inspect_err(|_| {
            release();
            sink.withdraw(tally, info);
        })?;
        if !is_measured {
            release();
        }
        let [kept, passed] = [kept, passed].map(|interval| interval.filter(|_| is_measured));
        if between.is_none() {
            measured.iter().for_each(|interval| timer.set_points(*interval, point));
        }
        if let Some(interval) = kept {
            timer.keep(&self.line, point, interval);
        }
        if let Some(sample) = sample {
            let times = passed.map(|interval| timer.stamps(&self.device, interval));
            sink.pass(sample, (&*self.timeline, self.priority), None, times);
        }
        Ok(Fence::new(Arc::clone(&self.timeline), point))
    }

    /// Makes the shader of lists.
    fn prepare_waits(&self) {
        let _is_made = self.line.queue.copies_lists();
    }

    fn stamp(&self) -> Result<Stamp> {
        WgpuClock::submit(&self.line.queue).map(|(slot, _)| self.stamp_of(slot))
    }

    fn outstanding(&self) -> u64 {
        self.line.queue.outstanding()
    }

    fn released(&self) {
        self.device.leases.fetch_sub(1, Ordering::Relaxed);
    }
}
