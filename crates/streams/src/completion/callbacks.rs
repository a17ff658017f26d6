//! What a user wants run once a stream has come to a point: on one thread of ours, never in a function that the driver calls.
//!
//! The reactor finds out that the point is over and tells this thread, which sleeps otherwise. A slow callback delays other
//! callbacks, and nobody's wake-ups.

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
use transload_core::{Error, ErrorKind, Result, Timeline, panic_text};

use super::timeline::StreamTimeline;

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// The callbacks of one stream. Whoever runs one holds this and not the stream, which may be gone by then.
#[derive(Default)]
pub(crate) struct Callbacks {
    queue: Mutex<Queue>,
    /// Signalled when one has run.
    ended: Condvar,
    /// Whether there ever was one, so that a stream without any pays a load.
    any: AtomicBool,
}

#[derive(Default)]
struct Queue {
    /// In order of their points.
    waiting: VecDeque<Waiting>,
    /// The points of those that the runner has and that have not ended, in its order.
    sent: VecDeque<u64>,
    counts: CallbackCounts,
}

struct Waiting {
    point: u64,
    callback: Callback,
    /// What it will be told, once its point is over.
    outcome: Option<Result<()>>,
}

/// How a stream's callbacks went.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallbackCounts {
    pub(crate) run: u64,
    pub(crate) panicked: u64,
    pub(crate) last_panic: Option<String>,
}

thread_local! {
    /// Whether callbacks come about on this thread: it runs them, or finds out that they are due.
    static RUNS_CALLBACKS: Cell<bool> = const { Cell::new(false) };
}

impl Callbacks {
    pub(crate) fn counts(&self) -> CallbackCounts {
        self.queue.lock().counts.clone()
    }

    /// Whether a callback at or before `point` has yet to run to its end, as seen by a thread that may wait for it: not by
    /// the one that runs them, nor by the reactor, on which a task may run.
    pub(crate) fn has_pending(&self, point: u64) -> bool {
        self.any.load(Ordering::Acquire) && !RUNS_CALLBACKS.get() && self.queue.lock().has_pending(point)
    }

    /// Blocks until every callback at or before `point`, which is reached, has run.
    pub(crate) fn wait(&self, point: u64) {
        let mut queue = self.queue.lock();
        while queue.has_pending(point) {
            self.ended.wait(&mut queue);
        }
    }

    /// The point of a callback is over. Gives the runner what is next, and has become due.
    fn make_ready(self: &Arc<Self>, point: u64, outcome: Result<()>) {
        // The thread was started before anything was registered.
        let Ok(runner) = runner() else { return };
        // Locked until the runner has them, so that they stay in order whoever else hands over meanwhile.
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
    /// Whether a callback at or before the point has yet to run to its end.
    fn has_pending(&self, point: u64) -> bool {
        let waiting = self.waiting.front().is_some_and(|waiting| waiting.point <= point);
        waiting || self.sent.iter().any(|at| *at <= point)
    }

    fn insert(&mut self, point: u64, callback: Callback) {
        // Two threads may register at once, the later point first.
        let index = self.waiting.partition_point(|waiting| waiting.point < point);
        self.waiting.insert(index, Waiting { point, callback, outcome: None });
    }
}

/// Has `callback` run once everything up to `point`, a point of its own, is over.
pub(crate) fn register(timeline: &Arc<StreamTimeline>, point: u64, callback: Callback) {
    timeline.callbacks.any.store(true, Ordering::Release);
    timeline.callbacks.queue.lock().insert(point, callback);
    let due = Arc::new(CallbackWaker { timeline: Arc::clone(timeline), point });
    if timeline.watch(point, &Waker::from(Arc::clone(&due))) {
        due.wake();
    }
}

/// The calling thread is one without which no callback runs: it waits for none.
pub(crate) fn mark_callback_thread() {
    RUNS_CALLBACKS.set(true);
}

/// Starts the thread, so that registering cannot fail after the work was marked.
pub(crate) fn prepare() -> Result<()> {
    runner().map(drop)
}

/// A callback that becomes due. Keeps its stream alive until then, and no longer: who is told by the callback may expect
/// that nobody else holds the stream.
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

/// The way to the thread that runs callbacks, which is started at the first call. It lives as long as the process, and ends
/// with it: what has not run by then never does.
fn runner() -> Result<&'static Sender<ReadyCallback>> {
    static RUNNER: OnceLock<Result<Sender<ReadyCallback>>> = OnceLock::new();
    let started = RUNNER.get_or_init(|| {
        let (sender, due) = mpsc::channel();
        let spawned = thread::Builder::new().name("transload-callbacks".to_owned()).spawn(|| run(due));
        let failed = |error| Error::caused_by(ErrorKind::Io, "starting the callbacks' thread", error);
        spawned.map(|_| sender).map_err(failed)
    });
    started.as_ref().map_err(Clone::clone)
}

fn run(due: Receiver<ReadyCallback>) {
    mark_callback_thread();
    for ReadyCallback { of, callback, outcome } in due {
        let panicked = catch_unwind(AssertUnwindSafe(|| callback(outcome))).err().map(panic_text);
        of.finish(panicked);
    }
}
