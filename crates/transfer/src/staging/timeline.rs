//! The end of a staged transfer as others see it: a timeline of one point. A thread that waits for it helps first.

use std::{
    any::Any,
    sync::{
        OnceLock, Weak,
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
    /// Whether a byte of the destination may have changed.
    wrote: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
    error: OnceLock<Error>,
    /// Does not keep the transfer alive: it ends by its tasks.
    transfer: OnceLock<Weak<StagedTransfer>>,
    /// What must be complete first, if no task is left that would reach the end: then it is found by polls and waits.
    left: OnceLock<SmallVec<[Fence; 8]>>,
}

#[derive(Default)]
struct State {
    wakers: Vec<Waker>,
    duration: Option<Duration>,
}

impl StagedTimeline {
    pub(crate) fn new(device: DeviceId, timing: Timing) -> Self {
        Self {
            id: next_timeline_id(),
            device,
            timing,
            over: AtomicBool::new(false),
            wrote: AtomicBool::new(false),
            state: Mutex::default(),
            ended: Condvar::new(),
            error: OnceLock::new(),
            transfer: OnceLock::new(),
            left: OnceLock::new(),
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
        self.wake_all(|state| {
            state.duration = (self.timing == Timing::Measured).then_some(duration);
            self.over.store(true, Ordering::Release);
        });
    }

    /// Ends the transfer, which has failed and has no task any more, once these are complete. It takes no thread: those who
    /// wait for the end wait for the fences.
    pub(super) fn reach_after(&self, left: SmallVec<[Fence; 8]>) {
        let _set_once = self.left.set(left);
        self.wake_all(|_| ());
        self.reach_if(Fence::is_known_done);
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

    /// Reaches the end of a transfer that has no task any more, if `complete` says so of all that is left.
    fn reach_if(&self, complete: impl Fn(&Fence) -> bool) {
        if !self.is_over() && self.left.get().is_some_and(|left| left.iter().all(complete)) {
            self.reach(Duration::ZERO);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn outcome(&self) -> Result<()> {
        self.error.get().map_or(Ok(()), |error| Err(error.clone()))
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
            let _ended_early = catch_panic(|| transfer.help());
        }
        let begun = Instant::now();
        while !self.is_over() {
            let polled = begun.elapsed();
            if polled < SPINNING {
                std::hint::spin_loop();
            } else if polled < POLLING {
                thread::yield_now();
            } else {
                let mut state = self.state.lock();
                while !self.is_over() && self.left.get().is_none() {
                    self.ended.wait(&mut state);
                }
            }
            self.reach_if(|fence| {
                let _failed = fence.wait();
                true
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
        self.reach_if(|fence| fence.is_known_done() || fence.timeline().wake_at(fence.point(), waker));
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
