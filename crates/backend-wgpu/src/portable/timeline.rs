//! The timeline of a device's queue.

use std::{any::Any, task::Waker};

use transload_core::{DeviceId, Error, ErrorKind, Result, Timeline, TimelineId};

use super::Submissions;

// SAFETY: a point is reached once wgpu says that its submission is complete, and with it all before, or once the device is lost, of
// which nothing touches memory that is not wgpu's; identifiers are unique.
unsafe impl Timeline for Submissions {
    fn id(&self) -> TimelineId {
        self.timeline
    }

    fn device(&self) -> DeviceId {
        self.id
    }

    fn reached(&self) -> u64 {
        Self::reached(self)
    }

    fn enqueued(&self) -> u64 {
        Self::enqueued(self)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        if Self::reached(self) < point && self.refresh() < point {
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
        if point == enqueued && self.is_about_to_submit() {
            let text =
                "a task waits within the call that submits what it waits for; leave that to another thread";
            return Err(Error::new(ErrorKind::Busy, text));
        }
        self.block_until(point);
        self.outcome(point)
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        // Waiting says that a point was never enqueued, and no thread would see it reached.
        if point > self.enqueued() || Self::reached(self) >= point || self.refresh() >= point {
            return true;
        }
        let Some(this) = self.this.upgrade() else { return false };
        if self.wakers.add(this, point, waker) {
            return false;
        }
        // No thread can be started to wait.
        self.block_until(point);
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
