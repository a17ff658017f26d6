//! The end of a job as others see it: a timeline of one point. Who waits for it lends a hand first.

use std::{
    any::Any,
    sync::{
        OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use transload_core::{DeviceId, Error, Result, Timeline, TimelineId, next_timeline_id};

use super::Job;

/// How long a waiter asks without pause before it sleeps: being woken costs up to some hundred microseconds.
const ASKING: Duration = Duration::from_micros(300);

pub(crate) struct End {
    id: TimelineId,
    device: DeviceId,
    over: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
    error: OnceLock<Error>,
    /// Does not keep the job alive: the job ends by its workers.
    job: OnceLock<Weak<Job>>,
}

#[derive(Default)]
struct State {
    wakers: Vec<Waker>,
    duration: Option<Duration>,
}

impl End {
    pub(crate) fn new(device: DeviceId) -> Self {
        Self {
            id: next_timeline_id(),
            device,
            over: AtomicBool::new(false),
            state: Mutex::default(),
            ended: Condvar::new(),
            error: OnceLock::new(),
            job: OnceLock::new(),
        }
    }

    /// Whose end this is; said once.
    pub(crate) fn belongs_to(&self, job: Weak<Job>) {
        let _said_once = self.job.set(job);
    }

    /// Keeps the first error.
    pub(crate) fn fail(&self, error: Error) {
        let _first_counts = self.error.set(error);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.error.get().is_some()
    }

    /// Everything of the job is over.
    pub(crate) fn reach(&self, duration: Duration) {
        let mut state = self.state.lock();
        state.duration = Some(duration);
        self.over.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.ended.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn outcome(&self) -> Result<()> {
        self.error.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}

// SAFETY: its one point is reached when every chunk and every copy of the job is over.
unsafe impl Timeline for End {
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
            && let Some(job) = self.job.get().and_then(Weak::upgrade)
            // One whose predecessors run would wait here for those, and those for theirs, ever deeper.
            && job.is_ready()
        {
            job.work();
        }
        let begun = Instant::now();
        while !self.is_over() {
            if begun.elapsed() < ASKING {
                std::hint::spin_loop();
                continue;
            }
            let mut state = self.state.lock();
            while !self.is_over() {
                self.ended.wait(&mut state);
            }
        }
        self.outcome()
    }

    fn wake_at(&self, _point: u64, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if self.is_over() {
            return true;
        }
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        false
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn take_duration(&self, _point: u64) -> Result<Option<Duration>> {
        Ok(self.state.lock().duration.take())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
