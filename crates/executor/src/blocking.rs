//! Calls that may block in the kernel or a driver: spare threads, and limits per key.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};
use transload_core::{Error, ErrorKind, Result, catch_panic};

use crate::{
    group::LiveGuard,
    guarded::discard,
    task::Completer,
    workers::{Workers, enter},
};

/// How long an idle spare thread stays.
const STAYING: Duration = Duration::from_secs(5);

/// A resource that blocking calls share, such as a device or a file, and a limit on how many of them run at once. Clones are
/// the same key.
#[derive(Clone)]
pub struct BlockingKey(Arc<KeyLimit>);

struct KeyLimit {
    most: usize,
    state: Mutex<KeyState>,
}

#[derive(Default)]
struct KeyState {
    running: usize,
    waiting: VecDeque<BlockingCall>,
}

/// A call. Given an error, it does not run its closure, and returns the error.
type BlockingCall = Box<dyn FnOnce(Result<()>) + Send>;

/// The spare threads of an executor, and the calls waiting for one.
#[derive(Default)]
pub(crate) struct SpareThreads {
    state: Mutex<SpareState>,
    posted: Condvar,
}

#[derive(Default)]
struct SpareState {
    calls: VecDeque<(BlockingCall, BlockingKey)>,
    alive: usize,
    /// Threads that run a call.
    busy: usize,
}

impl BlockingKey {
    /// Creates a key whose calls run at most `most` at once (at least 1).
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(KeyLimit { most: most.max(1), state: Mutex::default() }))
    }

    /// Admits a call, or queues it and returns `None`.
    fn admit(&self, body: BlockingCall) -> Option<BlockingCall> {
        let mut calls = self.0.state.lock();
        if calls.running == self.0.most && !transload_core::mutant!("executor/bound-a-key") {
            calls.waiting.push_back(body);
            return None;
        }
        calls.running += 1;
        Some(body)
    }

    /// Ends a call. Returns the next one, which takes its place.
    fn next(&self) -> Option<BlockingCall> {
        let mut calls = self.0.state.lock();
        let next = calls.waiting.pop_front();
        if next.is_none() {
            calls.running -= 1;
        }
        next
    }
}

impl fmt::Debug for BlockingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingKey").field("most", &self.0.most).finish_non_exhaustive()
    }
}

/// Starts a call as soon as its key permits. Returns `false` if it does but no thread is free for the call.
pub(crate) fn start<T: Send + 'static>(
    workers: &Arc<Workers>,
    key: &BlockingKey,
    live: LiveGuard,
    completer: Completer<T>,
    closure: impl FnOnce() -> T + Send + 'static,
) -> bool {
    let body = Box::new(move |permit: Result<()>| {
        let outcome = match permit {
            Ok(()) => catch_panic(closure),
            Err(error) => {
                discard(closure);
                Err(error)
            }
        };
        completer.complete(outcome);
        drop(live);
    });
    key.admit(body).is_none_or(|body| post(workers, body, key))
}

/// Passes an admitted call to a spare thread, starting one if all are busy. So there are never more of them than the keys'
/// limits permit. Returns `false` if all are busy and the system refuses another.
fn post(workers: &Arc<Workers>, body: BlockingCall, key: &BlockingKey) -> bool {
    let mut threads = workers.spare.state.lock();
    threads.calls.push_back((body, key.clone()));
    if threads.alive - threads.busy >= threads.calls.len() {
        drop(threads);
        workers.spare.posted.notify_one();
        return true;
    }
    threads.alive += 1;
    drop(threads);
    let theirs = Arc::clone(workers);
    if let Err(error) = workers.spare_threads.start(workers.next_name(), move || run(&theirs)) {
        let mut threads = workers.spare.state.lock();
        threads.alive -= 1;
        if threads.alive > 0 {
            // One of those takes the call after its own.
            return false;
        }
        let refused = std::mem::take(&mut threads.calls);
        drop(threads);
        let error = Error::caused_by(ErrorKind::Io, "cannot start a thread for a call that may block", error);
        for (body, key) in refused {
            body(Err(error.clone()));
            while let Some(body) = key.next() {
                body(Err(error.clone()));
            }
        }
        return false;
    }
    true
}

impl SpareThreads {
    pub(crate) fn live_threads(&self) -> usize {
        self.state.lock().alive
    }

    /// Wakes idle threads, which end at shutdown.
    pub(crate) fn wake_all(&self) {
        drop(self.state.lock());
        self.posted.notify_all();
    }
}

/// The main loop of a spare thread.
fn run(workers: &Arc<Workers>) {
    enter();
    let spare = &workers.spare;
    let mut threads = spare.state.lock();
    loop {
        if let Some((body, key)) = threads.calls.pop_front() {
            threads.busy += 1;
            drop(threads);
            // Panics of the closure are caught within; this catches those of destructors.
            let _panic = catch_panic(|| body(Ok(())));
            threads = spare.state.lock();
            threads.busy -= 1;
            // Under the lock: a call admitted because this one ended finds this thread idle.
            let next = key.next();
            // To the back: no key keeps a thread while others wait.
            threads.calls.extend(next.map(|body| (body, key)));
            continue;
        }
        if workers.is_closing() {
            break;
        }
        let timed_out = spare.posted.wait_for(&mut threads, STAYING).timed_out();
        if timed_out && threads.calls.is_empty() {
            break;
        }
    }
    threads.alive -= 1;
}
