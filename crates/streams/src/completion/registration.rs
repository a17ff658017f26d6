//! What a stream and the reactor share: who waits for the stream's points, and whether the reactor is to poll_requested.
//!
//! A stream is registered with the reactor once and stays so. Whoever awaits takes the stream's own lock, sets flags of the
//! stream's own, and reads whether the reactor rests.

use super::wakers::Wakers;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, fence};

/// The tasks that wait for one stream. `S` names the stream for the reactor, without keeping it alive.
pub(crate) struct Registration<S> {
    pub(crate) wakers: Mutex<Wakers>,
    /// Whether someone waits; written with `wakers` locked.
    has_waiters: AtomicBool,
    /// Someone came since the reactor looked.
    new_waiter: AtomicBool,
    /// The reactor has it, or will find it among those that came.
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

    /// Whether anyone waits, as of the last change.
    pub(crate) fn has_waiters(&self) -> bool {
        self.has_waiters.load(Ordering::Acquire)
    }

    /// Follows a change of `wakers`, which the caller has locked.
    pub(crate) fn set_has_waiters(&self, wakers: &Wakers) {
        self.has_waiters.store(!wakers.is_empty(), Ordering::Release);
    }

    /// Whether someone came since the last call.
    pub(crate) fn take_new_waiter(&self) -> bool {
        self.new_waiter.load(Ordering::Relaxed) && self.new_waiter.swap(false, Ordering::Acquire)
    }
}

/// What the reactor's thread does.
const RUNNING: u64 = 0;
/// It rests for a moment, or until someone comes: it must be woken.
const PARKED: u64 = 1;
/// As `PARKED`, and nobody waited for anything.
const IDLE: u64 = 2;

/// Where streams and the reactor's thread meet.
pub(crate) struct ReactorQueue<S> {
    /// Streams that the reactor does not have yet.
    came: Mutex<Vec<Arc<Registration<S>>>>,
    /// Something is to be looked at that no stream's flag tells of.
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

    /// Whether the thread rests because nobody waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.load(Ordering::Relaxed) == IDLE
    }

    /// Someone was added to the stream's wakers. Returns whether the thread must be unparked.
    pub(crate) fn notify(&self, registration: &Arc<Registration<S>>) -> bool {
        registration.new_waiter.store(true, Ordering::Release);
        // Either the thread sees the flag before it rests, or it is seen to rest; likewise where it gives the stream up.
        fence(Ordering::SeqCst);
        if !registration.registered.load(Ordering::Relaxed)
            && !registration.registered.swap(true, Ordering::AcqRel)
        {
            self.came.lock().push(Arc::clone(registration));
            return self.poll_now();
        }
        self.wake()
    }

    /// Has the thread look once more without a pause. Returns whether it must be unparked.
    pub(crate) fn poll_now(&self) -> bool {
        self.poll_requested.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.wake()
    }

    fn wake(&self) -> bool {
        self.state.load(Ordering::Relaxed) != RUNNING && self.state.swap(RUNNING, Ordering::AcqRel) != RUNNING
    }

    /// Moves what came to `registrations`, for the thread. Returns whether something was to be looked at.
    pub(crate) fn take(&self, registrations: &mut Vec<Arc<Registration<S>>>) -> bool {
        let requested =
            self.poll_requested.load(Ordering::Relaxed) && self.poll_requested.swap(false, Ordering::Acquire);
        if requested {
            registrations.append(&mut self.came.lock());
        }
        requested
    }

    /// Says that the thread is about to rest. Returns whether it may: nothing came since it looked.
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

    /// The thread is up again.
    pub(crate) fn unparked(&self) {
        self.state.store(RUNNING, Ordering::Release);
    }

    /// Gives a stream up that nobody waits for. Returns whether it is given up: someone may have come, and registered it again.
    pub(crate) fn deregister(&self, registration: &Registration<S>) -> bool {
        if registration.has_waiters() {
            return false;
        }
        registration.registered.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        // Whoever comes from here on registers it; who came before is seen here.
        let came = registration.new_waiter.load(Ordering::Relaxed) || registration.has_waiters();
        !came || registration.registered.swap(true, Ordering::AcqRel)
    }
}
