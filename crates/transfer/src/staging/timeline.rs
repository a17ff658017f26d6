//! The timeline of a staged transfer, with a single point. A thread that waits for it helps to copy first.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use transload_core::{
    DeviceId, Error, Fence, Result, Timeline, TimelineId, Timing, catch_panic, next_timeline_id,
};

use super::StagedTransfer;

/// Time that a waiter polls before it sleeps: waking a thread takes up to some hundred microseconds.
const POLLING: Duration = Duration::from_micros(300);
/// Part of that time that it spins without yielding.
const SPINNING: Duration = Duration::from_micros(50);

pub(crate) struct StagedTimeline {
    id: TimelineId,
    device: DeviceId,
    timing: Timing,
    complete: AtomicBool,
    /// Whether a task ended early, so that the end is found by polls and waits only.
    interrupted: AtomicBool,
    /// Whether a byte of the destination may have changed.
    written: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
    error: OnceLock<Error>,
    /// Weak: tasks keep the transfer alive.
    transfer: OnceLock<Weak<StagedTransfer>>,
}

#[derive(Default)]
struct State {
    wakers: Vec<Waker>,
    duration: Option<Duration>,
    /// Fences that an interrupted transfer's end waits for; `None` once they are complete.
    remaining: Option<SmallVec<[Fence; 8]>>,
    /// The transfer, if it is left to who polls or waits first.
    left: Option<Arc<StagedTransfer>>,
}

impl StagedTimeline {
    pub(crate) fn new(device: DeviceId, timing: Timing) -> Self {
        Self {
            id: next_timeline_id(),
            device,
            timing,
            complete: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            written: AtomicBool::new(false),
            state: Mutex::default(),
            ended: Condvar::new(),
            error: OnceLock::new(),
            transfer: OnceLock::new(),
        }
    }

    /// Returns the fence of work that failed after it had begun to write, and that ends after these fences.
    pub(crate) fn failed(device: DeviceId, error: Error, after: &[Fence]) -> Fence {
        let timeline = Self::new(device, Timing::Off);
        timeline.fail(error);
        timeline.mark_written();
        timeline.complete_after(after.iter().cloned().collect());
        Fence::new(Arc::new(timeline), 1)
    }

    /// Sets the transfer, once.
    pub(super) fn set_transfer(&self, transfer: Weak<StagedTransfer>) {
        let _set_once = self.transfer.set(transfer);
    }

    /// Leaves the transfer to who polls or waits first.
    pub(super) fn leave(&self, transfer: Arc<StagedTransfer>) {
        self.state.lock().left = Some(transfer);
    }

    fn take_left(&self) -> Option<Arc<StagedTransfer>> {
        self.state.lock().left.take()
    }

    /// Keeps the first error.
    pub(super) fn fail(&self, error: Error) {
        let _first_counts = self.error.set(error);
    }

    /// Notes that the destination may change from here on.
    pub(super) fn mark_written(&self) {
        // Relaxed: published by `complete`.
        self.written.store(!transload_core::mutant!("transfer/marks-writes"), Ordering::Relaxed);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.error.get().is_some()
    }

    /// Completes the timeline: all work is complete.
    pub(super) fn complete(&self, duration: Duration) {
        // Dropped outside the lock.
        let mut remaining = None;
        self.wake_all(|state| {
            remaining = state.remaining.take();
            state.duration = (self.timing == Timing::Measured).then_some(duration);
            self.complete.store(true, Ordering::Release);
        });
    }

    /// Completes the timeline of an interrupted transfer once these fences are complete. Needs no thread: those that
    /// poll or wait for the end do so for the fences.
    pub(super) fn complete_after(&self, mut remaining: SmallVec<[Fence; 8]>) {
        remaining.retain(|fence| !catch_panic(|| fence.is_known_complete()).unwrap_or(false));
        if remaining.is_empty() {
            return self.complete(Duration::ZERO);
        }
        self.wake_all(|state| {
            state.remaining = Some(remaining);
            self.interrupted.store(true, Ordering::Release);
        });
    }

    /// Changes the state, then wakes all waiters.
    fn wake_all(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.ended.notify_all();
        for waker in wakers {
            // User code: a panic must not keep others from being woken.
            let _discarded = catch_panic(|| waker.wake());
        }
    }

    /// Completes an interrupted transfer's timeline if `complete` returns `true` for all remaining fences. A panic
    /// counts as `false`.
    fn complete_if(&self, complete: impl Fn(&Fence) -> bool) {
        // A remaining fence may be another interrupted transfer's, and so on: iterate instead of recursing.
        let mut stack = SmallVec::<[Fence; 4]>::new();
        while self.is_interrupted() {
            let end = stack.last().and_then(as_staged).unwrap_or(self);
            let next = end.state.lock().remaining.as_ref().and_then(|remaining| remaining.last().cloned());
            match next {
                Some(next) if as_staged(&next).is_some_and(Self::is_interrupted) => stack.push(next),
                Some(next) if catch_panic(|| complete(&next)).unwrap_or(false) => end.forget(&next),
                Some(_) => return,
                None => {
                    end.complete(Duration::ZERO);
                    stack.pop();
                }
            }
        }
    }

    /// Removes a complete fence from those remaining. Another thread may have done so.
    fn forget(&self, complete: &Fence) {
        let mut state = self.state.lock();
        let removed = state.remaining.as_mut().and_then(|remaining| {
            let mut points = remaining.iter().map(|one| (one.timeline().id(), one.point()));
            let at = points.position(|one| one == (complete.timeline().id(), complete.point()))?;
            Some(remaining.swap_remove(at))
        });
        drop(state);
        drop(removed);
    }

    /// Blocks until the transfer is complete or interrupted.
    fn wait_until_settled(&self) {
        let mut state = self.state.lock();
        while !self.is_complete() && !self.is_interrupted() {
            self.ended.wait(&mut state);
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Acquire) && !self.is_complete()
    }

    fn outcome(&self) -> Result<()> {
        self.error.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// Has a task begin a transfer that was left to a thread that waits.
fn begin(left: Option<Arc<StagedTransfer>>) {
    if let Some(transfer) = left.filter(|_| !transload_core::mutant!("transfer/poll-begins"))
        && let Err(error) = transfer.spawn()
    {
        // Dropped here, the transfer ends with this error.
        transfer.timeline.fail(error);
    }
}

/// Returns a fence's timeline if it is a staged transfer's.
fn as_staged(fence: &Fence) -> Option<&StagedTimeline> {
    fence.timeline().as_any().downcast_ref()
}

impl Drop for StagedTimeline {
    /// A remaining fence may be the last handle of another interrupted transfer, and so on: iterate instead of nesting
    /// drops.
    fn drop(&mut self) {
        let mut remaining = self.state.get_mut().remaining.take().unwrap_or_default();
        while let Some(fence) = remaining.pop() {
            if Arc::strong_count(fence.timeline()) == 1
                && let Some(end) = as_staged(&fence)
            {
                remaining.extend(end.state.lock().remaining.take().into_iter().flatten());
            }
        }
    }
}

// SAFETY: its point is reached when every chunk and every copy of the transfer is complete.
unsafe impl Timeline for StagedTimeline {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn reached(&self) -> u64 {
        u64::from(self.is_complete())
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        begin(self.take_left());
        self.complete_if(Fence::is_complete);
        if self.is_complete() { self.outcome().map(|()| true) } else { Ok(false) }
    }

    fn wait(&self, _point: u64) -> Result<()> {
        let left = self.take_left();
        let begins = left.is_some();
        if !self.is_complete()
            && let Some(transfer) = left.or_else(|| self.transfer.get().and_then(Weak::upgrade))
        {
            // A panic of a backend fails the transfer, not the waiting thread.
            let _ended_early = catch_panic(move || transfer.help(begins));
        }
        let begun = Instant::now();
        while !self.is_complete() {
            let polled = begun.elapsed();
            if polled < SPINNING {
                std::hint::spin_loop();
            } else {
                thread::yield_now();
                if polled >= POLLING {
                    self.wait_until_settled();
                }
            }
            self.complete_if(|fence| match as_staged(fence) {
                // If interrupted meanwhile, wait for its remaining fences.
                Some(end) => {
                    end.wait_until_settled();
                    end.is_complete()
                }
                None => {
                    let _failed = fence.wait();
                    true
                }
            });
        }
        self.outcome()
    }

    fn wake_at(&self, _point: u64, waker: &Waker) -> bool {
        // Cloning and dropping a waker is user code: not under the lock.
        let mut new = Some(waker.clone());
        let mut state = self.state.lock();
        if !self.is_complete()
            && let Some(new) = new.take_if(|new| !state.wakers.iter().any(|known| known.will_wake(new)))
        {
            state.wakers.push(new);
        }
        let left = state.left.take();
        drop(state);
        begin(left);
        self.complete_if(|fence| {
            let is_complete = catch_panic(|| fence.is_known_complete() || fence.wake_at(waker));
            // After a panic nothing else would wake the task.
            is_complete.unwrap_or_else(|_| {
                waker.wake_by_ref();
                false
            })
        });
        self.is_complete()
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn may_have_written(&self, _point: u64) -> bool {
        self.written.load(Ordering::Relaxed)
    }

    fn take_duration(&self, _point: u64) -> Result<Option<Duration>> {
        Ok(self.state.lock().duration.take())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
#[path = "../../tests/unit/staged_timeline.rs"]
mod tests;
