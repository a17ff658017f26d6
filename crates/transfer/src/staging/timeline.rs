//! The end of a staged transfer as others see it: a timeline of one point. A thread that waits for it helps first.

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

/// How long a waiter polls before it sleeps: being woken costs up to some hundred microseconds.
const POLLING: Duration = Duration::from_micros(300);
/// How much of that it spends without yielding its processor.
const SPINNING: Duration = Duration::from_micros(50);

pub(crate) struct StagedTimeline {
    id: TimelineId,
    device: DeviceId,
    timing: Timing,
    complete: AtomicBool,
    /// Whether no task is left that would reach the end: then it is found by polls and waits.
    interrupted: AtomicBool,
    /// Whether a byte of the destination may have changed.
    written: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
    error: OnceLock<Error>,
    /// Does not keep the transfer alive: it ends by its tasks.
    transfer: OnceLock<Weak<StagedTransfer>>,
}

#[derive(Default)]
struct State {
    wakers: Vec<Waker>,
    duration: Option<Duration>,
    /// What must be complete before an end without a task; `None` again once it is reached.
    remaining: Option<SmallVec<[Fence; 8]>>,
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

    /// Sets the transfer whose end this is, once.
    pub(super) fn set_transfer(&self, transfer: Weak<StagedTransfer>) {
        let _set_once = self.transfer.set(transfer);
    }

    /// Keeps the first error.
    pub(super) fn fail(&self, error: Error) {
        let _first_counts = self.error.set(error);
    }

    /// Says that a byte of the destination may change from here on.
    pub(super) fn mark_written(&self) {
        // Whoever sees the end sees this.
        self.written.store(!transload_core::mutant!("transfer/marks-writes"), Ordering::Relaxed);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.error.get().is_some()
    }

    /// Ends the transfer: all of its work is over.
    pub(super) fn complete(&self, duration: Duration) {
        // Dropped outside the lock.
        let mut remaining = None;
        self.wake_all(|state| {
            remaining = state.remaining.take();
            state.duration = (self.timing == Timing::Measured).then_some(duration);
            self.complete.store(true, Ordering::Release);
        });
    }

    /// Ends the transfer, which has failed and has no task any more, once these are complete. It takes no thread: those who
    /// wait for the end wait for the fences.
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

    /// Changes the state, then wakes everyone who waits.
    fn wake_all(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.ended.notify_all();
        for waker in wakers {
            // The user's code: its panic must not keep the others asleep.
            let _discarded = catch_panic(|| waker.wake());
        }
    }

    /// Reaches the end of a transfer that has no task any more, if `complete` says so of all that is left. A panic says nothing.
    fn complete_if(&self, complete: impl Fn(&Fence) -> bool) {
        // What is left may be another such end, and so on: the way down to them is kept here and not on the stack.
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

    /// Removes what is complete from what is left. Another thread may have done so.
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

    /// Blocks until the end is reached, or is to be found by polls and waits.
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

/// Returns the end of a staged transfer behind a fence.
fn as_staged(fence: &Fence) -> Option<&StagedTimeline> {
    fence.timeline().as_any().downcast_ref()
}

impl Drop for StagedTimeline {
    /// What is left may be the last handle of another such end, and so on: not by drops within each other.
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

// SAFETY: its one point is reached when every chunk and every copy of the transfer is over.
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
        self.complete_if(Fence::is_complete);
        if self.is_complete() { self.outcome().map(|()| true) } else { Ok(false) }
    }

    fn wait(&self, _point: u64) -> Result<()> {
        if !self.is_complete()
            && let Some(transfer) = self.transfer.get().and_then(Weak::upgrade)
        {
            // A panic of a backend's ends the transfer, not the thread that waits for it.
            let _ended_early = catch_panic(move || transfer.help());
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
                // It may end early meanwhile: then what it remaining is waited for.
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
        // The user's code, as its drop is: not under the lock.
        let mut new = Some(waker.clone());
        let mut state = self.state.lock();
        if !self.is_complete()
            && let Some(new) = new.take_if(|new| !state.wakers.iter().any(|known| known.will_wake(new)))
        {
            state.wakers.push(new);
        }
        drop(state);
        self.complete_if(|fence| {
            let is_complete =
                catch_panic(|| fence.is_known_complete() || fence.timeline().wake_at(fence.point(), waker));
            // After a panic nobody else would wake the task.
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
