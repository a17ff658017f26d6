//! A queue's timeline.

use std::{any::Any, sync::atomic::Ordering, task::Waker, time::Duration};

use transload_core::{DeviceId, Error, ErrorKind, PointSignal, Result, Timeline, TimelineId};

use super::{HAS_WAITERS, OpQueue};

// SAFETY: a point is reached once its work has returned; identifiers are unique.
unsafe impl Timeline for OpQueue {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    fn enqueued(&self) -> u64 {
        Self::enqueued(self)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        if self.reached() < point {
            return Ok(false);
        }
        self.outcome(point).map(|()| true)
    }

    fn wait(&self, point: u64) -> Result<()> {
        if self.reached() < point {
            let enqueued = self.enqueued();
            if point > enqueued {
                let text = format!("point {point} was never enqueued; the last one is {enqueued}");
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            self.block_until(point);
        }
        self.outcome(point)
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        if self.reached() >= point {
            return true;
        }
        // A waker is user code: clone and drop it outside the lock.
        let waker = waker.clone();
        let mut state = self.state.lock();
        self.word.fetch_or(HAS_WAITERS, Ordering::AcqRel);
        if self.reached() >= point {
            drop(state);
            return true;
        }
        // A future that is polled again passes the same waker.
        if state.wakers.iter().any(|(at, known)| *at == point && known.will_wake(&waker)) {
            drop(state);
            return false;
        }
        state.wakers.push((point, waker));
        false
    }

    /// True for an operation that no fence delays, once a task has it or will begin with it: what runs before its end then
    /// only copies memory.
    fn ends_by_host_alone(&self, point: u64) -> bool {
        let Some(this) = self.this.upgrade() else { return false };
        let state = self.state.lock();
        let first = || state.ops.front().is_some_and(|op| op.point == point && op.after.is_empty());
        if state.running != Some(point) && !(state.is_spawned && first()) {
            return false;
        }
        let is_watched = state.watched == point;
        drop(state);
        if is_watched || transload_core::mutant!("cpu/rescue") {
            return true;
        }
        let has_thread = this.rescue(point);
        if has_thread {
            self.state.lock().watched = point;
        }
        has_thread
    }

    fn signal_at(&self, point: u64, signal: PointSignal) {
        let mut state = self.state.lock();
        if self.reached() < point {
            // Only the next point has signals.
            state.signals.push(signal);
            return;
        }
        drop(state);
        signal();
    }

    /// A worker may panic.
    fn can_fail(&self) -> bool {
        true
    }

    fn take_duration(&self, point: u64) -> Result<Option<Duration>> {
        if !self.was_measured.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut state = self.state.lock();
        let index = state.durations.iter().position(|(at, _)| *at == point);
        let took = index.and_then(|index| state.durations.remove(index)).map(|(_, took)| took);
        if state.durations.is_empty() {
            self.was_measured.store(false, Ordering::Relaxed);
        }
        Ok(took)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
