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
    registration::{Desk, Watch},
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
pub(crate) type StreamWatch = Watch<Weak<StreamTimeline>>;

/// The process's reactor.
pub(crate) struct Reactor {
    desk: Desk<Weak<StreamTimeline>>,
    thread: OnceLock<Thread>,
}

impl Reactor {
    /// The reactor, started at the first call. Its thread lives as long as the process.
    pub(crate) fn get() -> Result<&'static Self> {
        static REACTOR: OnceLock<Reactor> = OnceLock::new();
        static STARTED: OnceLock<Result<()>> = OnceLock::new();
        let reactor = REACTOR.get_or_init(|| Self { desk: Desk::new(ROOM), thread: OnceLock::new() });
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
        self.desk.is_idle()
    }

    /// Asks for the stream's events until nobody waits for it any more.
    pub(crate) fn notice(&self, watch: &Arc<StreamWatch>) {
        if self.desk.notice(watch) && !transload_core::mutant!("streams/await-unparks-reactor") {
            self.unpark();
        }
    }

    /// Asks once more without a pause, for what it already knows of.
    pub(crate) fn look_now(&self) {
        if self.desk.look_now() {
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
        callbacks::come_from_here();
        let mut watches: Vec<Arc<StreamWatch>> = Vec::with_capacity(ROOM);
        let mut woken: Vec<Waker> = Vec::with_capacity(ROOM);
        let mut active = Instant::now();
        loop {
            let mut came = self.desk.take(&mut watches);
            let mut waiting = false;
            if came && watches.len() > ROOM {
                self.forget(&mut watches);
            }
            for watch in &watches {
                came |= watch.take_fresh();
                if !watch.is_awaited() {
                    continue;
                }
                let Some(timeline) = watch.stream.upgrade() else { continue };
                waiting |= timeline.wake_what_is_over(&mut woken);
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
                if quiet > BUSY && self.desk.rest(&watches, false) {
                    // In proportion to how long the work already takes, so that the delay stays a small part of it.
                    thread::park_timeout((quiet / 16).min(SLOWEST));
                    self.desk.rested();
                }
            } else {
                if self.desk.rest(&watches, true) {
                    thread::park();
                    self.desk.rested();
                }
            }
        }
    }

    /// Gives up streams that are gone, or that nobody waits for.
    fn forget(&self, watches: &mut Vec<Arc<StreamWatch>>) {
        watches.retain(|watch| watch.stream.strong_count() > 0 && !self.desk.give_up(watch));
    }
}
