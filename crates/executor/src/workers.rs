//! The worker threads: which task they take next, when they poll fences, and when they sleep.

use std::{
    cell::Cell,
    hint,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
    task::{Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use concurrent_queue::ConcurrentQueue;
use parking_lot::Mutex;
use transload_core::{Error, ErrorKind, Result, TimelineId, catch_panic};

use crate::{blocking::SpareThreads, fences::Fences, idle::Idle, thread_starter::ThreadStarter};

/// How long a worker without work searches before it sleeps: about as long as being woken takes (some 250 us measured in a
/// virtual machine), so that at worst the cost is doubled.
const SEARCHING: Duration = Duration::from_micros(400);
/// Part of that time during which it spins without yielding its processor.
const SPINNING: Duration = Duration::from_micros(10);
/// Minimum time between polls of fences by a worker that runs tasks. It polls only if no other worker searches.
const POLLING: Duration = Duration::from_micros(20);

thread_local! {
    /// Above 0 on threads of an executor and on helping threads, which must not drain.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    /// Whether this is a worker, which must not block.
    static WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as doing an executor's work.
pub(crate) fn enter() {
    INSIDE.set(INSIDE.get().saturating_add(1));
}

pub(crate) fn leave() {
    INSIDE.set(INSIDE.get().saturating_sub(1));
}

/// # Errors
/// [`ErrorKind::Unsupported`] on a worker.
pub(crate) fn refuse_to_block() -> Result<()> {
    if !WORKER.get() || transload_core::mutant!("executor/refuse-to-block") {
        return Ok(());
    }
    let text =
        "waiting for a task would block a worker, which may be the one that runs it; await the task instead";
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// Returns whether the calling thread does an executor's work.
pub(crate) fn is_inside() -> bool {
    INSIDE.get() > 0
}

/// # Errors
/// [`ErrorKind::Unsupported`] on a thread that does an executor's work.
pub(crate) fn refuse_to_drain() -> Result<()> {
    if !is_inside() || transload_core::mutant!("executor/refuse-to-drain") {
        return Ok(());
    }
    let text = "draining from within a task, a blocking call or a waker would wait for itself; drain on a thread of your own";
    Err(Error::new(ErrorKind::Unsupported, text))
}

/// A task that is ready. Its metadata names the timeline that it advances, if it can be run by [`Workers::run_one_of`].
pub(crate) type Runnable = async_task::Runnable<Option<TimelineId>>;

/// State shared by the workers.
pub(crate) struct Workers {
    /// Tasks that are ready, by priority.
    ready: [ConcurrentQueue<Runnable>; 3],
    idle: Idle,
    pub(crate) fences: Fences,
    pub(crate) spare: SpareThreads,
    /// Live tasks and calls of all groups. The threads stay until it is 0.
    live: AtomicUsize,
    closing: AtomicBool,
    /// Number of workers. Increased under `starting`, and never decreased.
    started: AtomicUsize,
    /// Locked while a worker is started, so that nobody relies on a first one that the system then refuses.
    starting: Mutex<ThreadStarter>,
    pub(crate) spare_threads: ThreadStarter,
    pub(crate) own_threads: ThreadStarter,
    most: usize,
    numbers: AtomicUsize,
}

impl Workers {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            ready: std::array::from_fn(|_| ConcurrentQueue::unbounded()),
            idle: Idle::default(),
            fences: Fences::default(),
            spare: SpareThreads::default(),
            live: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            started: AtomicUsize::new(0),
            starting: Mutex::new(ThreadStarter::new("worker of the executor")),
            spare_threads: ThreadStarter::new("calls that may block"),
            own_threads: ThreadStarter::new("a long call"),
            most,
            numbers: AtomicUsize::new(0),
        })
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    pub(crate) fn live_threads(&self) -> usize {
        self.started.load(Ordering::Relaxed) + self.spare.live_threads()
    }

    /// Returns the name of the next thread.
    pub(crate) fn next_name(&self) -> String {
        format!("transload-{}", self.numbers.fetch_add(1, Ordering::Relaxed))
    }

    /// Appends a task that is ready.
    pub(crate) fn push(self: &Arc<Self>, rank: usize, runnable: Runnable) {
        self.append(rank, runnable);
        if self.left(rank) > 0 {
            self.announce();
        }
    }

    /// Appends several tasks and wakes as many workers.
    pub(crate) fn push_all(self: &Arc<Self>, rank: usize, runnables: impl IntoIterator<Item = Runnable>) {
        let count = runnables.into_iter().map(|runnable| self.append(rank, runnable)).count();
        for _ in 0..self.idle.notify_several(count.min(self.left(rank))) {
            self.grow();
        }
    }

    /// Returns how many tasks no worker has taken yet. Who has taken one is no searcher any more: a sleeper would be woken in its place
    /// for nothing, which holds up the caller.
    fn left(&self, rank: usize) -> usize {
        self.ready.get(rank).map_or(0, ConcurrentQueue::len)
    }

    /// Wakes sleeping workers for tasks that are about to be appended.
    pub(crate) fn wake(&self, count: usize) {
        let _no_more_sleep = self.idle.notify_several(count);
    }

    fn append(&self, rank: usize, runnable: Runnable) {
        if let Some(queue) = self.ready.get(rank) {
            // The queue is neither bounded nor ever closed.
            let _always = queue.push(runnable);
        }
    }

    /// Wakes a worker for published work: a ready task or an awaited fence.
    pub(crate) fn announce(self: &Arc<Self>) {
        if !transload_core::mutant!("executor/announce") && self.idle.notify() {
            self.grow();
        }
    }

    /// Starts the first worker if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system refuses the first one.
    pub(crate) fn start_first(self: &Arc<Self>) -> Result<()> {
        self.start_unless(1)
            .map_err(|error| Error::caused_by(ErrorKind::Io, "cannot start a first worker thread", error))
    }

    /// Starts a further worker, if permitted. If the system refuses it, the existing ones do the work.
    fn grow(self: &Arc<Self>) {
        let _fewer_do = self.start_unless(self.most);
    }

    /// Starts a worker unless there are `enough`.
    fn start_unless(self: &Arc<Self>, enough: usize) -> std::io::Result<()> {
        if self.started.load(Ordering::Acquire) >= enough {
            return Ok(());
        }
        let starter = self.starting.lock();
        if self.started.load(Ordering::Acquire) >= enough {
            return Ok(());
        }
        // It starts as a searcher, so further pushes need not start another one.
        self.idle.begin();
        let theirs = Arc::clone(self);
        let started = starter.start(self.next_name(), move || theirs.work());
        if started.is_ok() {
            self.started.fetch_add(1, Ordering::AcqRel);
        } else {
            // Pushes meanwhile counted on it. If nobody sleeps, a busy worker does their work.
            let _refused_again = self.idle.found(|| self.is_ready() || self.fences.need_a_poll());
        }
        started
    }

    pub(crate) fn begun(&self) {
        self.live.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self) {
        if self.live.fetch_sub(1, Ordering::AcqRel) == 1 {
            fence(Ordering::SeqCst);
            if self.closing.load(Ordering::Relaxed) {
                self.idle.wake_all();
            }
        }
    }

    /// Called when the last handle is dropped: the threads end once nothing is live.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.idle.wake_all();
        self.spare.wake_all();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    fn is_complete(&self) -> bool {
        self.closing.load(Ordering::Acquire) && self.live.load(Ordering::Acquire) == 0
    }

    fn is_ready(&self) -> bool {
        self.ready.iter().any(|queue| !queue.is_empty())
    }

    fn pop(&self) -> Option<Runnable> {
        self.ready.iter().find_map(|queue| queue.pop().ok())
    }

    /// Runs the ready task of a timeline on the calling thread. Returns `false` if there is none. Tasks in front of it go to
    /// the back of their queue.
    pub(crate) fn run_one_of(self: &Arc<Self>, timeline: TimelineId) -> bool {
        for (rank, queue) in self.ready.iter().enumerate() {
            for _ in 0..queue.len() {
                let Ok(runnable) = queue.pop() else { break };
                if *runnable.metadata() == Some(timeline) {
                    // As in `run`.
                    let waker = runnable.waker();
                    let _panic = catch_panic(|| runnable.run());
                    drop(waker);
                    return true;
                }
                // Announced: a worker may have found the queue empty meanwhile, and gone to sleep.
                self.push(rank, runnable);
            }
        }
        false
    }

    /// The main loop of a worker, which starts as a searcher.
    fn work(self: &Arc<Self>) {
        enter();
        WORKER.set(true);
        while let Some(runnable) = self.search() {
            if self.idle.found(|| self.is_ready() || self.fences.need_a_poll()) {
                self.grow();
            }
            self.run(runnable);
            self.idle.begin();
        }
        let _last = self.idle.found(|| false);
    }

    /// Runs tasks as long as there are any.
    fn run(self: &Arc<Self>, first: Runnable) {
        let mut next = Some(first);
        let mut polled = Instant::now();
        while let Some(runnable) = next {
            // Panics of the caller's future are caught within the task; this catches those of destructors. The waker
            // outlives the run: a task that kept none is dropped with it, not leaked.
            let waker = runnable.waker();
            let _panic = catch_panic(|| runnable.run());
            match transload_core::mutant!("executor/drop-the-forgotten") {
                true => std::mem::forget(waker),
                false => drop(waker),
            }
            if self.fences.are_awaited() && self.idle.searching() == 0 && polled.elapsed() >= POLLING {
                self.fences.poll(|id| self.waker(id), |_, call| call());
                polled = Instant::now();
                if self.fences.need_a_poll() {
                    self.announce();
                }
            }
            next = self.pop();
        }
    }

    /// Finds a task. Returns `None` at shutdown.
    fn search(self: &Arc<Self>) -> Option<Runnable> {
        let mut begun = Instant::now();
        loop {
            if let Some(runnable) = self.pop() {
                return Some(runnable);
            }
            if self.is_complete() {
                self.fences.clear();
                return None;
            }
            if self.fences.poll(|id| self.waker(id), |others, call| self.call(others, call)) {
                begun = Instant::now();
                continue;
            }
            let searched = begun.elapsed();
            // One worker suffices to poll; a few more avoid the wake for the next work.
            if searched < SEARCHING && self.idle.searching() <= self.most.div_ceil(2) {
                if searched < SPINNING {
                    hint::spin_loop()
                } else {
                    thread::yield_now()
                }
                continue;
            }
            if self.fences.register(|id| self.waker(id), |others, call| self.call(others, call)) {
                continue;
            }
            self.idle.park(|| self.is_ready() || self.fences.need_a_poll() || self.is_complete());
            begun = Instant::now();
        }
    }

    /// Calls a driver. During the call the worker is not a searcher: another one is woken for work that arrives.
    fn call(self: &Arc<Self>, others: bool, call: &mut dyn FnMut()) {
        if self.idle.found(|| others || self.is_ready()) {
            self.grow();
        }
        call();
        self.idle.begin();
    }

    fn waker(self: &Arc<Self>, timeline: TimelineId) -> Waker {
        Waker::from(Arc::new(TimelineWaker { workers: Arc::clone(self), timeline }))
    }
}

/// The waker given to a timeline with awaited fences.
struct TimelineWaker {
    workers: Arc<Workers>,
    timeline: TimelineId,
}

impl Wake for TimelineWaker {
    fn wake(self: Arc<Self>) {
        self.workers.fences.set_due(self.timeline);
        self.workers.announce();
    }
}
