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
use transload_core::{Error, ErrorKind, Result, Timeline};

use crate::timeline::StreamTimeline;

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// The callbacks of one stream.
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
    running: Option<u64>,
    tally: Tally,
}

/// How a stream's callbacks went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) run: u64,
    pub(crate) panicked: u64,
    pub(crate) last_panic: Option<String>,
}

thread_local! {
    /// Whether this is the thread that runs callbacks.
    static RUNS_CALLBACKS: Cell<bool> = const { Cell::new(false) };
}

impl Callbacks {
    pub(crate) fn tally(&self) -> Tally {
        self.queue.lock().tally.clone()
    }

    /// Blocks until every callback at or before `point` has run; does nothing on the thread that runs them. All those
    /// points are reached.
    pub(crate) fn wait(&self, timeline: &Arc<StreamTimeline>, point: u64) -> Result<()> {
        if !self.any.load(Ordering::Acquire) || RUNS_CALLBACKS.get() {
            return Ok(());
        }
        let mut queue = self.queue.lock();
        if !queue.has(point) {
            return Ok(());
        }
        // The reactor would find out a little later.
        Runner::get()?.take(Arc::clone(timeline));
        while queue.has(point) {
            self.ended.wait(&mut queue);
        }
        Ok(())
    }

    /// Runs what is due, in order.
    fn run(&self, timeline: &StreamTimeline) {
        loop {
            let (point, callback) = {
                let mut queue = self.queue.lock();
                let due = queue.waiting.pop_front_if(|(point, _)| *point <= timeline.reached());
                let Some(due) = due else { return };
                queue.running = Some(due.0);
                due
            };
            let outcome = timeline.poll(point).map(|_over| ());
            let panicked = catch_unwind(AssertUnwindSafe(|| callback(outcome))).err().map(text_of);
            let mut queue = self.queue.lock();
            queue.running = None;
            queue.tally.run += 1;
            if let Some(text) = panicked {
                queue.tally.panicked += 1;
                queue.tally.last_panic = Some(text);
            }
            drop(queue);
            self.ended.notify_all();
        }
    }
}

impl Queue {
    /// Whether a callback at or before the point has yet to run to its end.
    fn has(&self, point: u64) -> bool {
        let first = self.waiting.front().map(|(at, _)| *at);
        [self.running, first].into_iter().flatten().any(|at| at <= point)
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
    let runner = Runner::get()?;
    timeline.callbacks.any.store(true, Ordering::Release);
    timeline.callbacks.queue.lock().insert(point, callback);
    if timeline.watch(point, &Waker::from(Arc::new(Due(Arc::clone(timeline))))) {
        runner.take(Arc::clone(timeline));
    }
    Ok(())
}

/// Starts the thread, so that registering cannot fail after the work was marked.
pub(crate) fn prepare() -> Result<()> {
    Runner::get().map(|_| ())
}

/// A stream of which a callback is due. Keeps it alive until then.
struct Due(Arc<StreamTimeline>);

impl Wake for Due {
    fn wake(self: Arc<Self>) {
        if let Ok(runner) = Runner::get() {
            runner.take(Arc::clone(&self.0));
        }
    }
}

/// The thread that runs callbacks.
struct Runner {
    due: Mutex<VecDeque<Arc<StreamTimeline>>>,
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

    fn take(&self, timeline: Arc<StreamTimeline>) {
        self.due.lock().push_back(timeline);
        self.wake_up.notify_one();
    }

    fn run(&self) {
        RUNS_CALLBACKS.set(true);
        loop {
            let timeline = {
                let mut due = self.due.lock();
                loop {
                    match due.pop_front() {
                        Some(timeline) => break timeline,
                        None => self.wake_up.wait(&mut due),
                    }
                }
            };
            timeline.callbacks.run(&timeline);
        }
    }
}
