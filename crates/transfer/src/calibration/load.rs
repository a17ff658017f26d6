//! Kernels that a calibration has a device run beside lists: each fills memory there, by every thread that the device has.

use std::{collections::VecDeque, sync::Arc, thread, time::Duration};

use transload_core::{
    Backend, DeviceId, Fence, MemoryKind, Operation, Pattern, QueueLease, RawBuffer, Result, StreamPriority,
    Timing, WorkloadType,
};

use crate::CrossBackendTransferManager;

/// Kernels in flight: while one runs, the next wait.
const IN_FLIGHT: usize = 3;

/// Kernels one after another, as long as someone feeds them.
pub(super) struct Load {
    backend: Arc<dyn Backend>,
    queue: QueueLease,
    /// Used by nothing else.
    buffer: RawBuffer,
    in_flight: VecDeque<Fence>,
    /// Kernels that ended.
    pub(super) ended: u32,
    /// The time of these on the device, waits for other kernels included.
    pub(super) taken: Duration,
}

impl Load {
    /// Each kernel fills so many bytes.
    ///
    /// # Errors
    /// The backend's; `Unsupported` if its device has no such kernel.
    pub(super) fn new(manager: &CrossBackendTransferManager, device: DeviceId, bytes: u64) -> Result<Self> {
        let backend = manager.backend(device)?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX) / 16 * 16;
        let buffer = manager.allocate_for(device, MemoryKind::Device, bytes)?;
        let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Compute)?;
        let mut load =
            Self { backend, queue, buffer, in_flight: VecDeque::new(), ended: 0, taken: Duration::ZERO };
        load.feed()?;
        Ok(load)
    }

    /// Counts the kernels that ended, and enqueues as many.
    ///
    /// # Errors
    /// The queue's; that of a kernel that failed.
    pub(super) fn feed(&mut self) -> Result<()> {
        let _attached = self.backend.attach_thread();
        while let Some(oldest) = self.in_flight.front().filter(|oldest| oldest.is_complete()) {
            oldest.wait()?;
            self.taken += oldest.timeline().take_duration(oldest.point())?.unwrap_or_default();
            self.ended += 1;
            self.in_flight.pop_front();
        }
        while self.in_flight.len() < IN_FLIGHT {
            let fill = Operation::Fill { dst: &self.buffer, pattern: Pattern::U128(1) };
            fill.validate()?;
            // SAFETY: nothing else uses the buffer, which `drop` keeps until the kernels ended.
            let kernel = unsafe { self.queue.enqueue(&fill, &[], Timing::Measured) }?;
            self.in_flight.push_back(kernel);
        }
        Ok(())
    }

    /// Feeds the kernels until `more` of them have ended.
    ///
    /// # Errors
    /// As [`feed`](Self::feed).
    pub(super) fn run(&mut self, more: u32) -> Result<()> {
        let until = self.ended.saturating_add(more);
        while self.ended < until {
            self.feed()?;
            thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for kernel in &self.in_flight {
            // One that failed uses the memory no more.
            let _ended = kernel.wait();
        }
    }
}
