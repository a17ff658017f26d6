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
use transload_core::{DeviceId, Error, Result, Timeline, TimelineId, Timing, next_timeline_id};
use transload_executor::catch_panic;

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
        self.wrote.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.error.get().is_some()
    }

    /// Ends the transfer: all of its work is over.
    pub(super) fn reach(&self, duration: Duration) {
        let mut state = self.state.lock();
        state.duration = (self.timing == Timing::Measured).then_some(duration);
        self.over.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.ended.notify_all();
        for waker in wakers {
            // The user's code: its panic must not keep the others asleep.
            let _discarded = catch_panic(|| waker.wake());
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
        if self.is_over() { self.outcome().map(|()| true) } else { Ok(false) }
    }

    fn wait(&self, _point: u64) -> Result<()> {
        if !self.is_over()
            && let Some(transfer) = self.transfer.get().and_then(Weak::upgrade)
        {
            transfer.help();
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
                while !self.is_over() {
                    self.ended.wait(&mut state);
                }
            }
        }
        self.outcome()
    }

    fn wake_at(&self, _point: u64, waker: &Waker) -> bool {
        // The user's code, as its drop is: not under the lock.
        let mut new = Some(waker.clone());
        let mut state = self.state.lock();
        let over = self.is_over();
        if !over && let Some(new) = new.take_if(|new| !state.wakers.iter().any(|known| known.will_wake(new)))
        {
            state.wakers.push(new);
        }
        drop(state);
        over
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
