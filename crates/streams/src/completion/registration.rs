//! State shared by a stream and the reactor: the stream's waiting tasks, and whether the reactor must poll.
//!
//! A stream stays registered after its first await. Awaiting takes only the stream's lock, sets the stream's flags,
//! and reads whether the reactor is parked.

use super::wakers::Wakers;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, fence};

/// A stream's registration with the reactor. `S` names the stream without keeping it alive.
pub(crate) struct Registration<S> {
    pub(crate) wakers: Mutex<Wakers>,
    /// Whether tasks wait. Written with `wakers` locked.
    has_waiters: AtomicBool,
    /// A task was added since the reactor's last poll.
    new_waiter: AtomicBool,
    /// The reactor has it, or it is in the queue.
    registered: AtomicBool,
    pub(crate) stream: S,
}

impl<S> Registration<S> {
    pub(crate) fn new(stream: S, wakers: Wakers) -> Self {
        Self {
            wakers: Mutex::new(wakers),
            has_waiters: AtomicBool::new(false),
            new_waiter: AtomicBool::new(false),
            registered: AtomicBool::new(false),
            stream,
        }
    }

    /// Returns whether tasks wait, as of the last change.
    pub(crate) fn has_waiters(&self) -> bool {
        self.has_waiters.load(Ordering::Acquire)
    }

    /// Updates the flag after a change of `wakers`, which the caller has locked.
    pub(crate) fn set_has_waiters(&self, wakers: &Wakers) {
        self.has_waiters.store(!wakers.is_empty(), Ordering::Release);
    }

    /// Returns whether a task was added since the last call.
    pub(crate) fn take_new_waiter(&self) -> bool {
        self.new_waiter.load(Ordering::Relaxed) && self.new_waiter.swap(false, Ordering::Acquire)
    }
}

/// The reactor's thread is running.
const RUNNING: u64 = 0;
/// Parked, possibly with a timeout: it must be unparked for a new waiter.
const PARKED: u64 = 1;
/// Like `PARKED`, with no task waiting.
const IDLE: u64 = 2;

/// Registrations for the reactor's thread, and whether it is parked.
pub(crate) struct ReactorQueue<S> {
    /// Registrations that the reactor has not taken yet.
    came: Mutex<Vec<Arc<Registration<S>>>>,
    /// Whether to poll for a reason other than a stream's flag.
    poll_requested: AtomicBool,
    state: AtomicU64,
}

impl<S> ReactorQueue<S> {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            came: Mutex::new(Vec::with_capacity(room)),
            poll_requested: AtomicBool::new(false),
            state: AtomicU64::new(RUNNING),
        }
    }

    /// Returns whether the thread is parked with no task waiting.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.load(Ordering::Relaxed) == IDLE
    }

    /// Announces a new waker of the stream. Returns whether the thread must be unparked.
    pub(crate) fn notify(&self, registration: &Arc<Registration<S>>) -> bool {
        registration.new_waiter.store(true, Ordering::Release);
        // Either the thread sees the flag before it parks, or it is seen parked here; likewise when it deregisters
        // the stream.
        fence(Ordering::SeqCst);
        if !registration.registered.load(Ordering::Relaxed)
            && !registration.registered.swap(true, Ordering::AcqRel)
        {
            self.came.lock().push(Arc::clone(registration));
            return self.poll_now();
        }
        self.wake()
    }

    /// Requests one more poll without a pause. Returns whether the thread must be unparked.
    pub(crate) fn poll_now(&self) -> bool {
        self.poll_requested.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.wake()
    }

    fn wake(&self) -> bool {
        self.state.load(Ordering::Relaxed) != RUNNING && self.state.swap(RUNNING, Ordering::AcqRel) != RUNNING
    }

    /// Moves the new registrations to `registrations`. Returns whether a poll was requested.
    pub(crate) fn take(&self, registrations: &mut Vec<Arc<Registration<S>>>) -> bool {
        let requested =
            self.poll_requested.load(Ordering::Relaxed) && self.poll_requested.swap(false, Ordering::Acquire);
        if requested {
            registrations.append(&mut self.came.lock());
        }
        requested
    }

    /// Announces that the thread is about to park. Returns whether it may: no task was added since its last poll.
    pub(crate) fn try_park(&self, registrations: &[Arc<Registration<S>>], is_idle: bool) -> bool {
        self.state.swap(if is_idle { IDLE } else { PARKED }, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let came = !transload_core::mutant!("streams/reactor-looks-before-it-rests")
            && (self.poll_requested.load(Ordering::Relaxed)
                || registrations.iter().any(|registration| registration.new_waiter.load(Ordering::Relaxed)));
        if came {
            self.state.store(RUNNING, Ordering::Release);
        }
        !came
    }

    /// Records that the thread runs again.
    pub(crate) fn unparked(&self) {
        self.state.store(RUNNING, Ordering::Release);
    }

    /// Deregisters a stream without waiters. Returns whether that succeeded: a task may be added concurrently.
    pub(crate) fn deregister(&self, registration: &Registration<S>) -> bool {
        if registration.has_waiters() {
            return false;
        }
        registration.registered.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        // A task added from here on registers the stream again; an earlier one is seen here.
        let came = registration.new_waiter.load(Ordering::Relaxed) || registration.has_waiters();
        !came || registration.registered.swap(true, Ordering::AcqRel)
    }
}
