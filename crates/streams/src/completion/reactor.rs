//! One thread that polls timelines and wakes tasks.
//!
//! It polls without pause for a while after a completion, then at growing intervals, and parks while no task waits.

use std::{
    io,
    sync::{Arc, OnceLock, Weak},
    task::Waker,
    thread::{self, Thread},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use transload_core::{Error, ErrorKind, Result, catch_panic, events::report};
use transload_cuda_sys::RelaxedCapture;

use super::{
    callbacks,
    registration::ReactorQueue,
    waiters::{TimelineRegistration, Watched},
};

/// Time of polling without pause after the last completion or request: longer than a small copy takes.
const BUSY: Duration = Duration::from_micros(200);
/// Longest interval between polls.
const SLOWEST: Duration = Duration::from_micros(500);

/// Initial capacity for streams and wakers, so that the first await allocates no more than later ones. With more
/// streams, those without waiters are deregistered.
const ROOM: usize = 64;

/// The process's reactor.
pub(crate) struct Reactor {
    queue: ReactorQueue<Weak<dyn Watched>>,
    thread: OnceLock<Thread>,
    /// Locked while its thread may hold handles of streams. Under it no code of users is called but destructors of wakers that nobody woke.
    polling: Mutex<()>,
}

/// Returns a value that is made once. After a failure the next call tries again.
pub(super) fn get_or_try_init<T>(cell: &OnceLock<T>, make: impl FnOnce() -> io::Result<T>) -> io::Result<&T> {
    /// One thread makes any of them.
    static MAKING: Mutex<()> = Mutex::new(());
    if cell.get().is_none() {
        let _making = MAKING.lock();
        if cell.get().is_none() {
            let made = make()?;
            return Ok(cell.get_or_init(|| made));
        }
    }
    cell.get().ok_or_else(|| io::ErrorKind::Other.into())
}

static REACTOR: OnceLock<Reactor> = OnceLock::new();

impl Reactor {
    /// Returns the reactor, starting its thread at the first call. The thread lives as long as the process.
    ///
    /// # Errors
    /// `Io` if the system refuses a thread; the next call tries again.
    pub(crate) fn get() -> Result<&'static Self> {
        static STARTED: OnceLock<()> = OnceLock::new();
        let new =
            || Self { queue: ReactorQueue::new(ROOM), thread: OnceLock::new(), polling: Mutex::new(()) };
        let reactor = REACTOR.get_or_init(new);
        let start = || thread::Builder::new().name("transload-reactor".to_owned()).spawn(|| reactor.run());
        let started = get_or_try_init(&STARTED, || start().map(drop));
        let failed = |error| Error::caused_by(ErrorKind::Io, "starting the reactor's thread", error);
        started.map(|()| reactor).map_err(failed)
    }

    /// Waits until the reactor holds no stream that had no other handle before this call. Such a stream would be dropped later. Does not wait on the
    /// reactor's thread, where the last handle of a stream may drop wakers, code of users.
    pub(crate) fn wait_for_handles() {
        let is_other =
            |reactor: &&Self| reactor.thread.get().is_none_or(|own| own.id() != thread::current().id());
        if let Some(reactor) = REACTOR.get().filter(is_other) {
            drop(reactor.polling.lock());
        }
    }

    /// Returns whether it is parked because no task waits for any stream.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_idle()
    }

    /// Polls the timeline until no task waits for it.
    pub(crate) fn notify(&self, registration: &Arc<TimelineRegistration>) {
        if self.queue.notify(registration) && !transload_core::mutant!("streams/await-unparks-reactor") {
            self.unpark();
        }
    }

    /// Polls the registered streams once more without a pause.
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
        // Set before the thread first parks, so that a thread that sees it parked finds the handle.
        let _first = self.thread.set(thread::current());
        let _capture = RelaxedCapture::enter().inspect_err(|error| {
            report::call_failed("polls may invalidate a capture", None, error);
        });
        // A waker may run its task inline, and the task may synchronise a stream.
        callbacks::mark_callback_thread();
        let mut registrations: Vec<Arc<TimelineRegistration>> = Vec::with_capacity(ROOM);
        let mut woken: Vec<Waker> = Vec::with_capacity(ROOM);
        let mut active = Instant::now();
        loop {
            let mut came = self.queue.take(&mut registrations);
            let mut waiting = false;
            if came && registrations.len() > ROOM {
                self.forget(&mut registrations);
            }
            let polling = self.polling.lock();
            for registration in &registrations {
                came |= registration.take_new_waiter();
                if !registration.has_waiters() {
                    continue;
                }
                let Some(timeline) = registration.stream.upgrade() else { continue };
                waiting |= timeline.wake_reached(&mut woken);
                // This may drop the last handle of a stream: without a lock, and before its waiters are woken.
                let _panic = catch_panic(|| drop(timeline));
            }
            drop(polling);
            if came || !woken.is_empty() {
                active = Instant::now();
            }
            // A waker may run a task that submits.
            woken.drain(..).for_each(|waker| drop(catch_panic(|| waker.wake())));
            if waiting {
                let quiet = active.elapsed();
                if quiet > BUSY && self.queue.try_park(&registrations, false) {
                    // In proportion to the time waited so far, so that the added latency stays a small part of it.
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

    /// Deregisters streams that were dropped or have no waiters.
    fn forget(&self, registrations: &mut Vec<Arc<TimelineRegistration>>) {
        registrations.retain(|registration| {
            registration.stream.strong_count() > 0 && !self.queue.deregister(registration)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_made_is_tried_again_and_made_once() {
        let cell = OnceLock::new();
        let refused = || Err(io::ErrorKind::WouldBlock.into());
        assert_eq!(get_or_try_init::<i32>(&cell, refused).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(get_or_try_init(&cell, || Ok(1)).unwrap(), &1);
        assert_eq!(get_or_try_init(&cell, refused).unwrap(), &1);
    }
}
