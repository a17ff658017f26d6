//! Calls that may block in the kernel or a driver: spare threads, and bounds for each key.

use std::{collections::VecDeque, fmt, sync::Arc, thread, time::Duration};

use parking_lot::{Condvar, Mutex};
use transload_core::{Error, ErrorKind, Result, catch_panic};

use crate::{
    group::Live,
    guarded::discard,
    task::Completer,
    workers::{Workers, enter},
};

/// How long a spare thread stays without a call.
const STAYING: Duration = Duration::from_secs(5);

/// What blocking calls have in common, such as a device or a file, and how many of them run at once. Clones are the same
/// key.
#[derive(Clone)]
pub struct BlockingKey(Arc<Bound>);

struct Bound {
    most: usize,
    state: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    running: usize,
    waiting: VecDeque<Body>,
}

/// A call; with an error it only says that it did not run.
type Body = Box<dyn FnOnce(Result<()>) + Send>;

/// The spare threads of an executor, and the calls that wait for one to begin.
#[derive(Default)]
pub(crate) struct Spare {
    state: Mutex<Threads>,
    posted: Condvar,
}

#[derive(Default)]
struct Threads {
    calls: VecDeque<(Body, BlockingKey)>,
    alive: usize,
    /// Those that have a call.
    busy: usize,
}

impl BlockingKey {
    /// Returns a new key of which at most `most` calls run at once (at least 1).
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Bound { most: most.max(1), state: Mutex::default() }))
    }

    /// Admits a call; `None` if it must wait for another one's end.
    fn admit(&self, body: Body) -> Option<Body> {
        let mut calls = self.0.state.lock();
        if calls.running == self.0.most && !transload_core::mutant!("executor/bound-a-key") {
            calls.waiting.push_back(body);
            return None;
        }
        calls.running += 1;
        Some(body)
    }

    /// A call ended: returns the next one, which runs in its stead.
    fn next(&self) -> Option<Body> {
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

/// Starts a call as soon as its key permits.
pub(crate) fn start<T: Send + 'static>(
    workers: &Arc<Workers>,
    key: &BlockingKey,
    live: Live,
    completer: Completer<T>,
    closure: impl FnOnce() -> T + Send + 'static,
) {
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
    if let Some(body) = key.admit(body) {
        post(workers, body, key);
    }
}

/// Hands an admitted call to a spare thread, which is started if all have calls. So there are never more of them than calls
/// that keys permit at once.
fn post(workers: &Arc<Workers>, body: Body, key: &BlockingKey) {
    let mut threads = workers.spare.state.lock();
    threads.calls.push_back((body, key.clone()));
    if threads.alive - threads.busy >= threads.calls.len() {
        drop(threads);
        workers.spare.posted.notify_one();
        return;
    }
    threads.alive += 1;
    drop(threads);
    let theirs = Arc::clone(workers);
    if let Err(error) = thread::Builder::new().name(workers.next_name()).spawn(move || run(&theirs)) {
        let mut threads = workers.spare.state.lock();
        threads.alive -= 1;
        if threads.alive > 0 {
            // One of those takes the call when it has ended its own.
            return;
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
    }
}

impl Spare {
    /// Ends the threads that have nothing to do.
    pub(crate) fn wake_all(&self) {
        drop(self.state.lock());
        self.posted.notify_all();
    }
}

/// A spare thread's life.
fn run(workers: &Arc<Workers>) {
    enter();
    let spare = &workers.spare;
    let mut threads = spare.state.lock();
    loop {
        if let Some((body, key)) = threads.calls.pop_front() {
            threads.busy += 1;
            drop(threads);
            // What the caller wrote is guarded within; this is for what is left, such as a result's destructor.
            let _panic = catch_panic(|| body(Ok(())));
            threads = spare.state.lock();
            threads.busy -= 1;
            // Under the lock: who is admitted because this call ended finds this thread without one.
            let next = key.next();
            // To the back: no key keeps a thread while others wait for one.
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
