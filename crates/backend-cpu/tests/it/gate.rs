//! A queue of another backend, whose operations do nothing and complete when the test says so.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{
    DeviceId, Fence, Operation, Place, Queue, Result, StreamPriority, Timeline, TimelineId, Timing,
    next_timeline_id,
};

pub(crate) struct Gate {
    timeline: Arc<dyn Timeline>,
    line: Arc<GateLine>,
}

struct GateLine {
    id: TimelineId,
    reached: AtomicU64,
    state: Mutex<(u64, Vec<(u64, Waker)>)>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Self {
        let line = Arc::new(GateLine {
            id: next_timeline_id(),
            reached: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        Self { timeline: line.clone(), line }
    }

    /// Completes everything enqueued so far.
    pub(crate) fn open(&self) {
        let mut state = self.line.state.lock();
        self.line.reached.store(state.0, Ordering::Release);
        let wakers = std::mem::take(&mut state.1);
        drop(state);
        self.line.changed.notify_all();
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Wakes all waiters spuriously.
    pub(crate) fn wake_spuriously(&self) {
        let wakers: Vec<_> = self.line.state.lock().1.iter().map(|(_, waker)| waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns the number of registered wakers.
    pub(crate) fn waiting(&self) -> usize {
        self.line.state.lock().1.len()
    }
}

// SAFETY: what it says of its work is what the test wants: no memory is used behind its back.
unsafe impl Queue for Gate {
    fn device(&self) -> DeviceId {
        DeviceId::Other("gate", 0)
    }

    fn priority(&self) -> StreamPriority {
        StreamPriority::Normal
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    fn can_copy(&self, _: Place, _: Place) -> bool {
        false
    }

    fn can_wait_for(&self, _: &Fence) -> bool {
        true
    }

    unsafe fn enqueue(&self, _: &Operation<'_>, _: &[Fence], _: Timing) -> Result<Fence> {
        let mut state = self.line.state.lock();
        state.0 += 1;
        Ok(Fence::new(Arc::clone(&self.timeline), state.0))
    }

    fn outstanding(&self) -> u64 {
        0
    }
}

// SAFETY: what it says of its work is what the test wants: no memory is used behind its back.
unsafe impl Timeline for GateLine {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Other("gate", 0)
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        Ok(self.reached() >= point)
    }

    fn wait(&self, point: u64) -> Result<()> {
        let mut state = self.state.lock();
        while self.reached() < point {
            self.changed.wait(&mut state);
        }
        Ok(())
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if self.reached() >= point {
            return true;
        }
        state.1.push((point, waker.clone()));
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
