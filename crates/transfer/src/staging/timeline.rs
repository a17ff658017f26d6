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
    over: AtomicBool,
    /// Whether no task is left that would reach the end: then it is found by polls and waits.
    early: AtomicBool,
    /// Whether a byte of the destination may have changed.
    wrote: AtomicBool,
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
    left: Option<SmallVec<[Fence; 8]>>,
}

impl StagedTimeline {
    pub(crate) fn new(device: DeviceId, timing: Timing) -> Self {
        Self {
            id: next_timeline_id(),
            device,
            timing,
            over: AtomicBool::new(false),
            early: AtomicBool::new(false),
            wrote: AtomicBool::new(false),
            state: Mutex::default(),
            ended: Condvar::new(),
            error: OnceLock::new(),
            transfer: OnceLock::new(),
        }
    }

    /// Sets the transfer whose end this is, once.
    pub(super) fn belongs_to(&self, transfer: Weak<StagedTransfer>) {
        let _set_once = self.transfer.set(transfer);
    }

    /// Keeps the first error.
    pub(super) fn fail(&self, error: Error) {
        let _first_counts = self.error.set(error);
    }

    /// Says that a byte of the destination may change from here on.
    pub(super) fn writes(&self) {
        // Whoever sees the end sees this.
        self.wrote.store(!transload_core::mutant!("transfer/marks-writes"), Ordering::Relaxed);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.error.get().is_some()
    }

    /// Ends the transfer: all of its work is over.
    pub(super) fn reach(&self, duration: Duration) {
        // Dropped outside the lock.
        let mut left = None;
        self.wake_all(|state| {
            left = state.left.take();
            state.duration = (self.timing == Timing::Measured).then_some(duration);
            self.over.store(true, Ordering::Release);
        });
    }

    /// Ends the transfer, which has failed and has no task any more, once these are complete. It takes no thread: those who
    /// wait for the end wait for the fences.
    pub(super) fn reach_after(&self, mut left: SmallVec<[Fence; 8]>) {
        left.retain(|fence| !catch_panic(|| fence.is_known_done()).unwrap_or(false));
        if left.is_empty() {
            return self.reach(Duration::ZERO);
        }
        self.wake_all(|state| {
            state.left = Some(left);
            self.early.store(true, Ordering::Release);
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
    fn reach_if(&self, complete: impl Fn(&Fence) -> bool) {
        // What is left may be another such end, and so on: the way down to them is kept here and not on the stack.
        let mut way = SmallVec::<[Fence; 4]>::new();
        while self.is_early() {
            let end = way.last().and_then(staged).unwrap_or(self);
            let next = end.state.lock().left.as_ref().and_then(|left| left.last().cloned());
            match next {
                Some(next) if staged(&next).is_some_and(Self::is_early) => way.push(next),
                Some(next) if catch_panic(|| complete(&next)).unwrap_or(false) => end.forget(&next),
                Some(_) => return,
                None => {
                    end.reach(Duration::ZERO);
                    way.pop();
                }
            }
        }
    }

    /// Removes what is complete from what is left. Another thread may have done so.
    fn forget(&self, complete: &Fence) {
        let mut state = self.state.lock();
        let removed = state.left.as_mut().and_then(|left| {
            let mut points = left.iter().map(|one| (one.timeline().id(), one.point()));
            let at = points.position(|one| one == (complete.timeline().id(), complete.point()))?;
            Some(left.swap_remove(at))
        });
        drop(state);
        drop(removed);
    }

    /// Blocks until the end is reached, or is to be found by polls and waits.
    fn until_known(&self) {
        let mut state = self.state.lock();
        while !self.is_over() && !self.is_early() {
            self.ended.wait(&mut state);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn is_early(&self) -> bool {
        self.early.load(Ordering::Acquire) && !self.is_over()
    }

    fn outcome(&self) -> Result<()> {
        self.error.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

/// Returns the end of a staged transfer behind a fence.
fn staged(fence: &Fence) -> Option<&StagedTimeline> {
    fence.timeline().as_any().downcast_ref()
}

impl Drop for StagedTimeline {
    /// What is left may be the last handle of another such end, and so on: not by drops within each other.
    fn drop(&mut self) {
        let mut left = self.state.get_mut().left.take().unwrap_or_default();
        while let Some(fence) = left.pop() {
            if Arc::strong_count(fence.timeline()) == 1
                && let Some(end) = staged(&fence)
            {
                left.extend(end.state.lock().left.take().into_iter().flatten());
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
        u64::from(self.is_over())
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        self.reach_if(Fence::is_over);
        if self.is_over() { self.outcome().map(|()| true) } else { Ok(false) }
    }

    fn wait(&self, _point: u64) -> Result<()> {
        if !self.is_over()
            && let Some(transfer) = self.transfer.get().and_then(Weak::upgrade)
        {
            // A panic of a backend's ends the transfer, not the thread that waits for it.
            let _ended_early = catch_panic(move || transfer.help());
        }
        let begun = Instant::now();
        while !self.is_over() {
            let polled = begun.elapsed();
            if polled < SPINNING {
                std::hint::spin_loop();
            } else {
                thread::yield_now();
                if polled >= POLLING {
                    self.until_known();
                }
            }
            self.reach_if(|fence| match staged(fence) {
                // It may end early meanwhile: then what it left is waited for.
                Some(end) => {
                    end.until_known();
                    end.is_over()
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
        if !self.is_over()
            && let Some(new) = new.take_if(|new| !state.wakers.iter().any(|known| known.will_wake(new)))
        {
            state.wakers.push(new);
        }
        drop(state);
        self.reach_if(|fence| {
            let is_complete =
                catch_panic(|| fence.is_known_done() || fence.timeline().wake_at(fence.point(), waker));
            // After a panic nobody else would wake the task.
            is_complete.unwrap_or_else(|_| {
                waker.wake_by_ref();
                false
            })
        });
        self.is_over()
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn may_have_written(&self, _point: u64) -> bool {
        self.wrote.load(Ordering::Relaxed)
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
