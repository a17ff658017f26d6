//! Events that are noticed where locks may be held, and emitted where none is.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use tracing::{
    Level,
    level_filters::{LevelFilter, STATIC_MAX_LEVEL},
};

use super::{DRIVER, EVENTS_DROPPED};

/// Maximum number of events kept. Later ones are counted.
const KEPT: usize = 1024;

type Emit = Box<dyn FnOnce() + Send>;

struct Pending {
    events: Vec<Emit>,
    dropped: u64,
}

static PENDING: Mutex<Pending> = Mutex::new(Pending { events: Vec::new(), dropped: 0 });
/// Whether any is pending. Without one, emitting costs a load.
static ANY: AtomicBool = AtomicBool::new(false);

/// Returns whether a subscriber may want events of this level.
pub(crate) fn is_wanted(level: Level) -> bool {
    level <= STATIC_MAX_LEVEL && level <= LevelFilter::current()
}

/// Keeps an event for [`emit_deferred`]. `event` is called if a subscriber wants this level, and returns what emits it.
pub(super) fn defer<E>(level: Level, event: impl FnOnce() -> E)
where
    E: FnOnce() + Send + 'static,
{
    if !is_wanted(level) {
        return;
    }
    let emit: Emit = Box::new(event());
    let mut pending = PENDING.lock();
    let refused = if pending.events.len() < KEPT {
        pending.events.push(emit);
        None
    } else {
        pending.dropped += 1;
        Some(emit)
    };
    ANY.store(true, Ordering::Release);
    drop(pending);
    drop(refused);
}

/// Emits the events of memory, drivers and threads that were noticed since the last call: see [`report`](super::report). Call it where no lock
/// is held for which another thread waits, for example before a call that may take long returns. Without such events it costs one
/// load.
#[inline]
pub fn emit_deferred() {
    if ANY.load(Ordering::Acquire) {
        emit_all();
    }
}

#[cold]
fn emit_all() {
    let Pending { events, dropped } = {
        let mut pending = PENDING.lock();
        ANY.store(false, Ordering::Release);
        mem::replace(&mut *pending, Pending { events: Vec::new(), dropped: 0 })
    };
    events.into_iter().for_each(discard_panic);
    if dropped > 0 {
        discard_panic(|| {
            tracing::warn!(name: EVENTS_DROPPED, target: DRIVER, count = dropped, "events were dropped");
        });
    }
}

/// Calls a subscriber. It may be in a destructor or in the main loop of a thread, which its panic must not end; the process's panic hook
/// has reported it.
pub(super) fn discard_panic(emit: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(emit)) {
        std::mem::forget(payload);
    }
}
