//! The timeline of a device's queue.

use std::{any::Any, sync::atomic::Ordering, task::Waker, time::Duration};

use ash::vk;
use transload_core::{DeviceId, Error, ErrorKind, Result, Timeline, TimelineId};

use super::Submissions;

// SAFETY: a point is reached once the semaphore has its value, which it gets after the work of that submission and of all before, once the
// host has stored an upload after all before, or once the lost device is idle; identifiers are unique.
unsafe impl Timeline for Submissions {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.vulkan.id
    }

    fn reached(&self) -> u64 {
        Self::reached(self)
    }

    fn enqueued(&self) -> u64 {
        Self::enqueued(self)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        if Self::reached(self) < point && self.refresh() < point {
            self.vulkan.end_lost_signals();
            return Ok(false);
        }
        self.outcome(point).map(|()| true)
    }

    fn wait(&self, point: u64) -> Result<()> {
        let enqueued = self.enqueued();
        if point > enqueued {
            let text = format!("point {point} was never enqueued; the last one is {enqueued}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.block_until(point);
        self.outcome(point)
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        // Waiting says that a point was never enqueued, and no thread would see it reached.
        if Self::reached(self) >= point || point > self.enqueued() || self.refresh() >= point {
            return true;
        }
        let Some(this) = self.this.upgrade() else { return false };
        if !self.wakers.add(this, point, waker) {
            // No thread can be started to wait.
            self.block_until(point);
            return true;
        }
        false
    }

    fn take_duration(&self, point: u64) -> Result<Option<Duration>> {
        Self::take_duration(self, point)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Submissions {
    /// Returns what submissions to other queues of the device wait for to come after a point; `None` before the driver has that: perhaps it is
    /// submitted to the same queue of Vulkan, behind them.
    pub(crate) fn awaited(&self, point: u64) -> Option<(vk::Semaphore, u64)> {
        (point <= self.submitted.load(Ordering::Acquire)).then_some((self.semaphore.raw, point))
    }

    /// Returns the last point that the semaphore is known to have reached, for submissions to other queues to wait for, which see its writes
    /// then. `None` before the first one, and after a loss. What the host has stored since is seen without a wait.
    pub(crate) fn known(&self) -> Option<(vk::Semaphore, u64)> {
        let value = self.signalled.load(Ordering::Acquire);
        (value > 0 && self.vulkan.lost.get().is_none()).then_some((self.semaphore.raw, value))
    }
}
