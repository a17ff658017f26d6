//! One thread that asks events and wakes tasks: the asynchronous side of completion.
//!
//! It asks without pause while something completed a moment ago, then in growing intervals, and rests while nobody waits.

use std::{
    sync::{Arc, OnceLock, Weak},
    task::Waker,
    thread::{self, Thread},
    time::{Duration, Instant},
};

use transload_core::{Error, ErrorKind, Result, catch_panic};
use transload_cuda_sys::RelaxedCapture;

use super::{
    callbacks,
    registration::{ReactorQueue, Registration},
    timeline::StreamTimeline,
};

/// How long it asks without pause after the last completion or request: longer than a small copy takes.
const BUSY: Duration = Duration::from_micros(200);
/// The longest interval between questions.
const SLOWEST: Duration = Duration::from_micros(500);

/// Timelines, and tasks to be woken at once, that it has room for from its beginning: awaiting for the first time
/// allocates no more than later. Beyond so many, streams that nobody waits for are given up.
const ROOM: usize = 64;

/// What the reactor has of a stream. A task that awaits a point holds its fence, and a callback its stream: the reactor keeps none
/// alive.
pub(crate) type StreamRegistration = Registration<Weak<StreamTimeline>>;

/// The process's reactor.
pub(crate) struct Reactor {
    queue: ReactorQueue<Weak<StreamTimeline>>,
    thread: OnceLock<Thread>,
}

impl Reactor {
    /// The reactor, started at the first call. Its thread lives as long as the process.
    pub(crate) fn get() -> Result<&'static Self> {
        static REACTOR: OnceLock<Reactor> = OnceLock::new();
        static STARTED: OnceLock<Result<()>> = OnceLock::new();
        let reactor =
            REACTOR.get_or_init(|| Self { queue: ReactorQueue::new(ROOM), thread: OnceLock::new() });
        STARTED
            .get_or_init(|| {
                let spawned =
                    thread::Builder::new().name("transload-reactor".to_owned()).spawn(|| reactor.run());
                spawned
                    .map(|_| ())
                    .map_err(|error| Error::caused_by(ErrorKind::Io, "starting the reactor's thread", error))
            })
            .clone()
            .map(|()| reactor)
    }

    /// Whether it rests because nobody waits for any stream.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    /// Asks for the stream's events until nobody waits for it any more.
    pub(crate) fn notify(&self, registration: &Arc<StreamRegistration>) {
        if self.queue.notify(registration) && !transload_core::mutant!("streams/await-unparks-reactor") {
            self.unpark();
        }
    }

    /// Asks once more without a pause, for what it already knows of.
    pub(crate) fn poll_now(&self) {
        if self.queue.poll_now() {
            self.unpark();
        }
    }

    fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn run(&self) {
        // It rests only from here on, so that who sees it rest finds its handle.
        let _first = self.thread.set(thread::current());
        // A failure leaves the thread in the usual mode, in which it might disturb a capture but nothing else.
        let _capture = RelaxedCapture::enter();
        // A waker may run its task here and now, and the task may synchronise a stream.
        callbacks::mark_callback_thread();
        let mut registrations: Vec<Arc<StreamRegistration>> = Vec::with_capacity(ROOM);
        let mut woken: Vec<Waker> = Vec::with_capacity(ROOM);
        let mut active = Instant::now();
        loop {
            let mut came = self.queue.take(&mut registrations);
            let mut waiting = false;
            if came && registrations.len() > ROOM {
                self.forget(&mut registrations);
            }
            for registration in &registrations {
                came |= registration.take_new_waiter();
                if !registration.has_waiters() {
                    continue;
                }
                let Some(timeline) = registration.stream.upgrade() else { continue };
                waiting |= timeline.wake_reached(&mut woken);
                // Perhaps the last handle of a stream: dropped under no lock, and before anyone is told that its work is over.
                let _panic = catch_panic(|| drop(timeline));
            }
            if came || !woken.is_empty() {
                active = Instant::now();
            }
            // A waker may run a task that submits.
            woken.drain(..).for_each(|waker| drop(catch_panic(|| waker.wake())));
            if waiting {
                let quiet = active.elapsed();
                if quiet > BUSY && self.queue.try_park(&registrations, false) {
                    // In proportion to how long the work already takes, so that the delay stays a small part of it.
                    thread::park_timeout((quiet / 16).min(SLOWEST));
                    self.queue.unparked();
                }
            } else {
                if self.queue.try_park(&registrations, true) {
                    thread::park();
                    self.queue.unparked();
                }
            }
        }
    }

    /// Gives up streams that are gone, or that nobody waits for.
    fn forget(&self, registrations: &mut Vec<Arc<StreamRegistration>>) {
        registrations.retain(|registration| {
            registration.stream.strong_count() > 0 && !self.queue.deregister(registration)
        });
    }
}
