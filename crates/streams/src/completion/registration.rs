//! What a stream and the reactor share: who waits for the stream's points, and whether the reactor is to look.
//!
//! A stream is registered with the reactor once and stays so. Whoever awaits takes the stream's own lock, sets flags of the
//! stream's own, and reads whether the reactor rests.

use super::wakers::Wakers;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, fence};

/// The tasks that wait for one stream. `S` names the stream for the reactor, without keeping it alive.
pub(crate) struct Watch<S> {
    pub(crate) wakers: Mutex<Wakers>,
    /// Whether someone waits; written with `wakers` locked.
    awaited: AtomicBool,
    /// Someone came since the reactor looked.
    fresh: AtomicBool,
    /// The reactor has it, or will find it among those that came.
    registered: AtomicBool,
    pub(crate) stream: S,
}

impl<S> Watch<S> {
    pub(crate) fn new(stream: S, wakers: Wakers) -> Self {
        Self {
            wakers: Mutex::new(wakers),
            awaited: AtomicBool::new(false),
            fresh: AtomicBool::new(false),
            registered: AtomicBool::new(false),
            stream,
        }
    }

    /// Whether anyone waits, as of the last change.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Acquire)
    }

    /// Follows a change of `wakers`, which the caller has locked.
    pub(crate) fn note(&self, wakers: &Wakers) {
        self.awaited.store(!wakers.is_empty(), Ordering::Release);
    }

    /// Whether someone came since the last call.
    pub(crate) fn take_fresh(&self) -> bool {
        self.fresh.load(Ordering::Relaxed) && self.fresh.swap(false, Ordering::Acquire)
    }
}

/// What the reactor's thread does.
const AWAKE: u64 = 0;
/// It rests for a moment, or until someone comes: it must be woken.
const RESTING: u64 = 1;
/// As `RESTING`, and nobody waited for anything.
const IDLE: u64 = 2;

/// Where streams and the reactor's thread meet.
pub(crate) struct Desk<S> {
    /// Streams that the reactor does not have yet.
    came: Mutex<Vec<Arc<Watch<S>>>>,
    /// Something is to be looked at that no stream's flag tells of.
    look: AtomicBool,
    state: AtomicU64,
}

impl<S> Desk<S> {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            came: Mutex::new(Vec::with_capacity(room)),
            look: AtomicBool::new(false),
            state: AtomicU64::new(AWAKE),
        }
    }

    /// Whether the thread rests because nobody waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.load(Ordering::Relaxed) == IDLE
    }

    /// Someone was added to the stream's wakers. Returns whether the thread must be unparked.
    pub(crate) fn notice(&self, watch: &Arc<Watch<S>>) -> bool {
        watch.fresh.store(true, Ordering::Release);
        // Either the thread sees the flag before it rests, or it is seen to rest; likewise where it gives the stream up.
        fence(Ordering::SeqCst);
        if !watch.registered.load(Ordering::Relaxed) && !watch.registered.swap(true, Ordering::AcqRel) {
            self.came.lock().push(Arc::clone(watch));
            return self.look_now();
        }
        self.wake()
    }

    /// Has the thread look once more without a pause. Returns whether it must be unparked.
    pub(crate) fn look_now(&self) -> bool {
        self.look.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.wake()
    }

    fn wake(&self) -> bool {
        self.state.load(Ordering::Relaxed) != AWAKE && self.state.swap(AWAKE, Ordering::AcqRel) != AWAKE
    }

    /// Moves what came to `watches`, for the thread. Returns whether something was to be looked at.
    pub(crate) fn take(&self, watches: &mut Vec<Arc<Watch<S>>>) -> bool {
        let look = self.look.load(Ordering::Relaxed) && self.look.swap(false, Ordering::Acquire);
        if look {
            watches.append(&mut self.came.lock());
        }
        look
    }

    /// Says that the thread is about to rest. Returns whether it may: nothing came since it looked.
    pub(crate) fn rest(&self, watches: &[Arc<Watch<S>>], is_idle: bool) -> bool {
        self.state.swap(if is_idle { IDLE } else { RESTING }, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let came = !transload_core::mutant!("streams/reactor-looks-before-it-rests")
            && (self.look.load(Ordering::Relaxed)
                || watches.iter().any(|watch| watch.fresh.load(Ordering::Relaxed)));
        if came {
            self.state.store(AWAKE, Ordering::Release);
        }
        !came
    }

    /// The thread is up again.
    pub(crate) fn rested(&self) {
        self.state.store(AWAKE, Ordering::Release);
    }

    /// Gives a stream up that nobody waits for. Returns whether it is given up: someone may have come, and registered it again.
    pub(crate) fn give_up(&self, watch: &Watch<S>) -> bool {
        if watch.is_awaited() {
            return false;
        }
        watch.registered.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        // Whoever comes from here on registers it; who came before is seen here.
        let came = watch.fresh.load(Ordering::Relaxed) || watch.is_awaited();
        !came || watch.registered.swap(true, Ordering::AcqRel)
    }
}
