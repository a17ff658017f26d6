//! What a user wants run once a stream has come to a point: on one thread of ours, never in a function that the driver calls.
//!
//! The reactor finds out that the point is over and tells this thread, which sleeps otherwise. A slow callback delays other
//! callbacks, and nobody's wake-ups.

use std::{
    any::Any,
    cell::Cell,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
    thread,
};

use parking_lot::{Condvar, Mutex};
use transload_core::{Error, ErrorKind, Result};

use crate::timeline::StreamTimeline;

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
    waiting: VecDeque<(u64, Callback)>,
    /// The points of those that the runner has and that have not ended, in its order.
    handed: VecDeque<u64>,
    tally: Tally,
}

/// How a stream's callbacks went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) run: u64,
    pub(crate) panicked: u64,
    pub(crate) last_panic: Option<String>,
}

/// How far a stream has come, and how.
pub(crate) struct Progress {
    pub(crate) reached: u64,
    /// The last point that ended before the stream broke, and its error.
    pub(crate) broken: Option<(u64, Error)>,
}

impl Progress {
    fn at(&self, point: u64) -> Result<()> {
        match &self.broken {
            Some((over, error)) if point > *over => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

thread_local! {
    /// Whether this is the thread that runs callbacks.
    static RUNS_CALLBACKS: Cell<bool> = const { Cell::new(false) };
}

impl Callbacks {
    pub(crate) fn tally(&self) -> Tally {
        self.queue.lock().tally.clone()
    }

    /// Blocks until every callback at or before `point`, which is reached, has run; does nothing on the thread that runs
    /// them.
    pub(crate) fn wait(self: &Arc<Self>, point: u64, progress: impl FnOnce() -> Progress) -> Result<()> {
        if !self.any.load(Ordering::Acquire) || RUNS_CALLBACKS.get() {
            return Ok(());
        }
        // The reactor would find out a little later.
        self.hand_over(&progress())?;
        let mut queue = self.queue.lock();
        while queue.has(point) {
            self.ended.wait(&mut queue);
        }
        Ok(())
    }

    /// Gives the runner what is due.
    fn hand_over(self: &Arc<Self>, progress: &Progress) -> Result<()> {
        let runner = Runner::get()?;
        // Locked until the runner has them, so that they stay in order whoever else hands over meanwhile.
        let mut queue = self.queue.lock();
        while let Some((point, callback)) = queue.waiting.pop_front_if(|(at, _)| *at <= progress.reached) {
            queue.handed.push_back(point);
            runner.take(Job { of: Arc::clone(self), callback, outcome: progress.at(point) });
        }
        Ok(())
    }

    fn end(&self, panicked: Option<String>) {
        let mut queue = self.queue.lock();
        queue.handed.pop_front();
        queue.tally.run += 1;
        if let Some(text) = panicked {
            queue.tally.panicked += 1;
            queue.tally.last_panic = Some(text);
        }
        drop(queue);
        self.ended.notify_all();
    }
}

impl Queue {
    /// Whether a callback at or before the point has yet to run to its end.
    fn has(&self, point: u64) -> bool {
        let waiting = self.waiting.front().is_some_and(|(at, _)| *at <= point);
        waiting || self.handed.iter().any(|at| *at <= point)
    }

    fn insert(&mut self, point: u64, callback: Callback) {
        // Two threads may register at once, the later point first.
        let index = self.waiting.partition_point(|(at, _)| *at < point);
        self.waiting.insert(index, (point, callback));
    }
}

/// What a panic said. Its payload is foreign code, and may panic when it is dropped.
fn text_of(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned());
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
    text
}

/// Has `callback` run once everything up to `point` is over.
pub(crate) fn register(timeline: &Arc<StreamTimeline>, point: u64, callback: Callback) -> Result<()> {
    timeline.callbacks.any.store(true, Ordering::Release);
    timeline.callbacks.queue.lock().insert(point, callback);
    if timeline.watch(point, &Waker::from(Arc::new(Due(Arc::clone(timeline))))) {
        timeline.callbacks.hand_over(&timeline.progress())?;
    }
    Ok(())
}

/// Starts the thread, so that registering cannot fail after the work was marked.
pub(crate) fn prepare() -> Result<()> {
    Runner::get().map(|_| ())
}

/// A stream of which a callback is due. Keeps it alive until then, and no longer: who is told by the callback may expect
/// that nobody else holds the stream.
struct Due(Arc<StreamTimeline>);

impl Wake for Due {
    fn wake(self: Arc<Self>) {
        let progress = self.0.progress();
        let callbacks = Arc::clone(&self.0.callbacks);
        drop(self);
        // The thread was started before anything was registered.
        let _started = callbacks.hand_over(&progress);
    }
}

struct Job {
    of: Arc<Callbacks>,
    callback: Callback,
    outcome: Result<()>,
}

/// The thread that runs callbacks.
struct Runner {
    due: Mutex<VecDeque<Job>>,
    wake_up: Condvar,
}

impl Runner {
    /// Started at the first call. It lives as long as the process, and ends with it: what has not run by then never does.
    fn get() -> Result<&'static Self> {
        static RUNNER: Runner = Runner { due: Mutex::new(VecDeque::new()), wake_up: Condvar::new() };
        static STARTED: OnceLock<Result<()>> = OnceLock::new();
        let started = STARTED.get_or_init(|| {
            let spawned =
                thread::Builder::new().name("transload-callbacks".to_owned()).spawn(|| RUNNER.run());
            spawned
                .map(|_| ())
                .map_err(|error| Error::caused_by(ErrorKind::Io, "starting the callbacks' thread", error))
        });
        started.clone().map(|()| &RUNNER)
    }

    fn take(&self, job: Job) {
        self.due.lock().push_back(job);
        self.wake_up.notify_one();
    }

    fn run(&self) {
        RUNS_CALLBACKS.set(true);
        loop {
            let Job { of, callback, outcome } = {
                let mut due = self.due.lock();
                loop {
                    match due.pop_front() {
                        Some(job) => break job,
                        None => self.wake_up.wait(&mut due),
                    }
                }
            };
            let panicked = catch_unwind(AssertUnwindSafe(|| callback(outcome))).err().map(text_of);
            of.end(panicked);
        }
    }
}
