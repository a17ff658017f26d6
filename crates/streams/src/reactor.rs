//! One thread that asks events and wakes tasks: the asynchronous side of completion.
//!
//! It asks without pause while something completed a moment ago, then in growing intervals, and rests while nobody waits.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock, Weak},
    task::Waker,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use transload_core::{Error, ErrorKind, Result, TimelineId};
use transload_cuda_sys::RelaxedCapture;

use crate::{callbacks, timeline::StreamTimeline};

/// How long it asks without pause after the last completion or request: longer than a small copy takes.
const BUSY: Duration = Duration::from_micros(200);
/// The longest interval between questions.
const SLOWEST: Duration = Duration::from_micros(500);

/// Timelines, and tasks to be woken at once, that it has room for from its beginning: awaiting for the first time
/// allocates no more than later.
const ROOM: usize = 64;

/// The process's reactor.
pub(crate) struct Reactor {
    watched: Mutex<Watched>,
    wake_up: Condvar,
}

#[derive(Default)]
struct Watched {
    /// Whoever awaits a point holds its fence, and a callback its stream: the reactor keeps none alive.
    timelines: Vec<(TimelineId, Weak<StreamTimeline>)>,
    /// Counts requests, so that a pause is cut short by a new one.
    requests: u64,
}

impl Reactor {
    /// The reactor, started at the first call. Its thread lives as long as the process.
    pub(crate) fn get() -> Result<&'static Self> {
        static REACTOR: Reactor = Reactor {
            watched: Mutex::new(Watched { timelines: Vec::new(), requests: 0 }),
            wake_up: Condvar::new(),
        };
        static STARTED: OnceLock<Result<()>> = OnceLock::new();
        STARTED
            .get_or_init(|| {
                REACTOR.watched.lock().timelines.reserve(ROOM);
                let spawned =
                    thread::Builder::new().name("transload-reactor".to_owned()).spawn(|| REACTOR.run());
                spawned
                    .map(|_| ())
                    .map_err(|error| Error::caused_by(ErrorKind::Io, "starting the reactor's thread", error))
            })
            .clone()
            .map(|()| &REACTOR)
    }

    /// Whether it asks for any timeline just now.
    pub(crate) fn is_idle(&self) -> bool {
        self.watched.lock().timelines.is_empty()
    }

    /// Asks for the timeline's events until nobody waits for it any more.
    pub(crate) fn watch(&self, timeline: &Weak<StreamTimeline>, id: TimelineId) {
        let mut watched = self.watched.lock();
        if !watched.timelines.iter().any(|(known, _)| *known == id) {
            watched.timelines.push((id, Weak::clone(timeline)));
        }
        watched.requests += 1;
        drop(watched);
        self.wake_up.notify_one();
    }

    /// Asks once more without a pause, for what it already knows of.
    pub(crate) fn look_now(&self) {
        self.watched.lock().requests += 1;
        self.wake_up.notify_one();
    }

    fn run(&self) {
        // A failure leaves the thread in the usual mode, in which it might disturb a capture but nothing else.
        let _capture = RelaxedCapture::enter();
        // A waker may run its task here and now, and the task may synchronise a stream.
        callbacks::come_from_here();
        let mut round: Vec<Arc<StreamTimeline>> = Vec::with_capacity(ROOM);
        let mut woken: Vec<Waker> = Vec::with_capacity(ROOM);
        let mut active = Instant::now();
        let mut requests = 0;
        loop {
            self.next_round(&mut round, &mut requests, &mut active);
            let mut finished = false;
            for timeline in &round {
                if !timeline.wake_what_is_over(&mut woken) {
                    finished = true;
                }
            }
            if !woken.is_empty() {
                active = Instant::now();
            }
            round.clear();
            if finished {
                self.forget_idle(&mut round);
            }
            // The last handle of a stream may go here: outside the lock, and before anyone is told that its work is over.
            round.clear();
            // Outside all locks: a waker may run a task that submits.
            for waker in woken.drain(..) {
                // Foreign code: its panic is its own, and must not leave everyone else asleep.
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                    // To drop it is foreign code, too.
                    std::mem::forget(payload);
                }
            }
        }
    }

    /// Waits until something is to be asked, and takes it.
    fn next_round(&self, round: &mut Vec<Arc<StreamTimeline>>, requests: &mut u64, active: &mut Instant) {
        let mut watched = self.watched.lock();
        while watched.timelines.is_empty() {
            self.wake_up.wait(&mut watched);
        }
        if watched.requests == *requests {
            let quiet = active.elapsed();
            if quiet > BUSY {
                // In proportion to how long the work already takes, so that the delay stays a small part of it.
                self.wake_up.wait_for(&mut watched, (quiet / 16).min(SLOWEST));
            }
        }
        if watched.requests != *requests {
            *requests = watched.requests;
            *active = Instant::now();
        }
        watched.timelines.retain(|(_, timeline)| match timeline.upgrade() {
            Some(timeline) => {
                round.push(timeline);
                true
            }
            None => false,
        });
    }

    fn forget_idle(&self, forgotten: &mut Vec<Arc<StreamTimeline>>) {
        // Whoever registers a waker calls `watch` afterwards, so a timeline forgotten here in error comes back.
        let mut watched = self.watched.lock();
        watched.timelines.retain(|(_, timeline)| {
            let Some(timeline) = timeline.upgrade() else { return false };
            let awaited = timeline.is_awaited();
            // Perhaps the last handle by now: not to be dropped under the lock.
            forgotten.push(timeline);
            awaited
        });
    }
}
