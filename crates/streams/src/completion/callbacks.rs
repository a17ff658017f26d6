//! User callbacks at points of a stream. They run on a thread of this library, not in a driver callback.
//!
//! The reactor detects completion and wakes this thread. A slow callback delays only other callbacks.

use std::{
    cell::Cell,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    task::{Wake, Waker},
    thread,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{Error, ErrorKind, Result, Timeline, events::report, panic_text};

use super::{reactor::get_or_try_init, timeline::StreamTimeline};

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// The callbacks of one stream. The callback thread holds this rather than the stream, which may already be
/// destroyed.
#[derive(Default)]
pub(crate) struct Callbacks {
    queue: Mutex<Queue>,
    /// Notified when a callback has run.
    ended: Condvar,
    /// Whether a callback was ever registered. Without one, the check costs a load.
    any: AtomicBool,
}

#[derive(Default)]
struct Queue {
    /// Sorted by point.
    waiting: VecDeque<Waiting>,
    /// Points of callbacks that were sent to the thread and have not finished, in order.
    sent: VecDeque<u64>,
    counts: CallbackCounts,
}

struct Waiting {
    point: u64,
    callback: Callback,
    /// Its argument, once the point is complete.
    outcome: Option<Result<()>>,
}

/// Counts of a stream's callbacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallbackCounts {
    pub(crate) run: u64,
    pub(crate) panicked: u64,
    pub(crate) last_panic: Option<String>,
}

thread_local! {
    /// Whether this thread runs callbacks or detects that they are ready.
    static RUNS_CALLBACKS: Cell<bool> = const { Cell::new(false) };
}

impl Callbacks {
    pub(crate) fn counts(&self) -> CallbackCounts {
        self.queue.lock().counts.clone()
    }

    /// Returns whether a callback at or before `point` has not finished. Always `false` on the callback thread and
    /// the reactor, which must not wait for it.
    pub(crate) fn has_pending(&self, point: u64) -> bool {
        self.any.load(Ordering::Acquire) && !RUNS_CALLBACKS.get() && self.queue.lock().has_pending(point)
    }

    /// Blocks until every callback at or before `point`, which is reached, has finished.
    pub(crate) fn wait(&self, point: u64) {
        let mut queue = self.queue.lock();
        while queue.has_pending(point) {
            self.ended.wait(&mut queue);
        }
    }

    /// Sets the outcome of the callback at `point`, and sends all leading ready callbacks to the thread.
    fn make_ready(self: &Arc<Self>, point: u64, outcome: Result<()>) {
        // The thread was started before any callback was registered.
        let Ok(runner) = runner() else { return };
        // Send with the lock held, so that concurrent senders keep the order.
        let mut queue = self.queue.lock();
        if let Some(due) = queue.waiting.iter_mut().find(|waiting| waiting.point == point) {
            due.outcome = Some(outcome);
        }
        while let Some(Waiting { point, callback, outcome: Some(outcome) }) =
            queue.waiting.pop_front_if(|waiting| waiting.outcome.is_some())
        {
            queue.sent.push_back(point);
            let _it_lives_as_long_as_the_process =
                runner.send(ReadyCallback { of: Arc::clone(self), callback, outcome });
        }
    }

    fn finish(&self, panicked: Option<String>) {
        let mut queue = self.queue.lock();
        queue.sent.pop_front();
        queue.counts.run += 1;
        if let Some(text) = panicked {
            queue.counts.panicked += 1;
            queue.counts.last_panic = Some(text);
        }
        drop(queue);
        self.ended.notify_all();
    }
}

impl Queue {
    /// Returns whether a callback at or before the point has not finished.
    fn has_pending(&self, point: u64) -> bool {
        let waiting = self.waiting.front().is_some_and(|waiting| waiting.point <= point);
        waiting || self.sent.iter().any(|at| *at <= point)
    }

    fn insert(&mut self, point: u64, callback: Callback) {
        // Threads may register concurrently, the later point first.
        let index = self.waiting.partition_point(|waiting| waiting.point < point);
        self.waiting.insert(index, Waiting { point, callback, outcome: None });
    }
}

/// Runs `callback` once all work up to `point` is complete. Each callback has its own point.
pub(crate) fn register(timeline: &Arc<StreamTimeline>, point: u64, callback: Callback) {
    timeline.callbacks.any.store(true, Ordering::Release);
    timeline.callbacks.queue.lock().insert(point, callback);
    let due = Arc::new(CallbackWaker { timeline: Arc::clone(timeline), point });
    if timeline.watch(point, &Waker::from(Arc::clone(&due))) {
        due.wake();
    }
}

/// Marks the calling thread as one that must not wait for callbacks, since they depend on it.
pub(crate) fn mark_callback_thread() {
    RUNS_CALLBACKS.set(true);
}

/// Starts the thread, so that registering cannot fail later.
pub(crate) fn prepare() -> Result<()> {
    runner().map(drop)
}

/// Wakes when a callback is ready. Keeps its stream alive until then only: when the callback runs, no other handle
/// may remain.
struct CallbackWaker {
    timeline: Arc<StreamTimeline>,
    point: u64,
}

impl Wake for CallbackWaker {
    fn wake(self: Arc<Self>) {
        let outcome = self.timeline.poll(self.point).map(|_over| ());
        let (callbacks, point) = (Arc::clone(&self.timeline.callbacks), self.point);
        drop(self);
        callbacks.make_ready(point, outcome);
    }
}

struct ReadyCallback {
    of: Arc<Callbacks>,
    callback: Callback,
    outcome: Result<()>,
}

/// Returns the channel to the callback thread, starting it at the first call. The thread lives as long as the
/// process; callbacks that have not run by its end never do.
fn runner() -> Result<&'static Sender<ReadyCallback>> {
    static RUNNER: OnceLock<Sender<ReadyCallback>> = OnceLock::new();
    let start = || {
        let (sender, due) = mpsc::channel();
        let spawned = thread::Builder::new().name("transload-callbacks".to_owned()).spawn(|| run(due));
        spawned.map(|_| sender)
    };
    let failed = |error| Error::caused_by(ErrorKind::Io, "starting the callbacks' thread", error);
    get_or_try_init(&RUNNER, start).map_err(failed)
}

fn run(due: Receiver<ReadyCallback>) {
    mark_callback_thread();
    for ReadyCallback { of, callback, outcome } in due {
        let panicked = catch_unwind(AssertUnwindSafe(|| callback(outcome))).err().map(panic_text);
        if let Some(text) = &panicked {
            report::panic_caught(text);
        }
        of.finish(panicked);
    }
}
