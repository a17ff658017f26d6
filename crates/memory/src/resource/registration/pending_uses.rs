//! A fence of a buffer's current uses, available even while another thread is submitting one.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    thread,
};

use transload_core::{DeviceId, Fence, RawBuffer, Result, Timeline, TimelineId, next_timeline_id};

/// Reaches point 1 when all uses claimed before it was created are complete. Keeps the buffer alive.
struct PendingUses {
    id: TimelineId,
    buffer: RawBuffer,
    /// The fences of the uses, set once no submission is in progress.
    uses: OnceLock<Vec<Fence>>,
    over: AtomicBool,
}

/// Returns a fence of the buffer's current uses, including submissions in progress.
pub(super) fn end_of_uses(buffer: &RawBuffer) -> Fence {
    let (id, buffer) = (next_timeline_id(), buffer.clone());
    let uses = PendingUses { id, buffer, uses: OnceLock::new(), over: AtomicBool::new(false) };
    Fence::new(Arc::new(uses), 1)
}

impl PendingUses {
    /// Returns `None` while a submission is in progress.
    fn uses(&self) -> Option<&[Fence]> {
        if self.uses.get().is_none() {
            let fences = self.buffer.in_flight()?;
            let _first = self.uses.set(fences);
        }
        self.uses.get().map(Vec::as_slice)
    }

    fn is_complete(&self) -> bool {
        let over = self.over.load(Ordering::Acquire)
            || self.uses().is_some_and(|uses| uses.iter().all(Fence::is_complete));
        if over {
            self.over.store(true, Ordering::Release);
        }
        over
    }
}

// SAFETY: the point is reached when every use's own fence completes; those were read when no submission was in
// progress.
unsafe impl Timeline for PendingUses {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.buffer.place().device
    }

    fn reached(&self) -> u64 {
        u64::from(self.over.load(Ordering::Acquire))
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        Ok(self.is_complete())
    }

    fn wait(&self, _point: u64) -> Result<()> {
        loop {
            match self.uses() {
                Some(uses) => {
                    for fence in uses {
                        let _reported_by_the_transfer = fence.wait();
                    }
                    self.over.store(true, Ordering::Release);
                    return Ok(());
                }
                // Lasts at most one driver call.
                None => thread::yield_now(),
            }
        }
    }

    fn wake_at(&self, _point: u64, waker: &Waker) -> bool {
        if self.is_complete() {
            return true;
        }
        match self.uses() {
            Some(uses) => uses.iter().all(|fence| fence.timeline().wake_at(fence.point(), waker)),
            None => {
                waker.wake_by_ref();
                false
            }
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
