//! The executor's handle.

use std::{
    fmt,
    future::Future,
    num::NonZero,
    sync::{Arc, OnceLock, Weak},
    thread,
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{
    Error, ErrorKind, Fence, Result, StreamPriority, TimelineId, catch_panic, events::report,
};

use crate::{
    Task,
    blocking::{self, BlockingKey},
    fences,
    group::{Group, Helping, LiveGuard},
    guarded::{discard, guarded},
    workers::{Runnable, Workers, enter, refuse_to_drain},
};

/// More workers than this did not make anything faster: 8 saturate a PCIe 5 link, 14 to 16 the first touch of fresh memory
/// and the reading of files.
const DEFAULT: usize = 16;
/// Largest number of threads accepted.
const MOST: usize = 1024;

/// Returns the number of processors that the process may use: that of the thread that calls it first. It stays the same, since the system
/// tells each thread its own.
#[must_use]
pub fn processors() -> usize {
    static NUMBER: OnceLock<usize> = OnceLock::new();
    *NUMBER.get_or_init(|| thread::available_parallelism().map_or(2, NonZero::get))
}

/// Host threads for tasks, and a count of live work.
///
/// Clones share both; [`group`](Self::group) shares the threads only. All methods may be called from any thread. The threads
/// end when the last handle, groups included, was dropped and every task has ended; dropping never blocks.
#[derive(Clone)]
pub struct Executor {
    handle: Arc<Handle>,
    group: Arc<Group>,
}

/// Ends the threads when the last one is dropped.
struct Handle(Arc<Workers>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Executor {
    /// Returns the process-wide executor, with as many workers as processors, at most 16. Each call returns a new group.
    #[must_use]
    pub fn shared() -> Self {
        static SHARED: Mutex<Weak<Handle>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock();
        let handle = shared.upgrade().unwrap_or_else(|| {
            let handle = Arc::new(Handle(Workers::new(processors().min(DEFAULT))));
            *shared = Arc::downgrade(&handle);
            handle
        });
        Self { handle, group: Arc::default() }
    }

    /// Returns an executor with threads of its own: at most `most` workers, 1 to 1024. Threads for blocking calls are not among
    /// them. No thread is started yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a number of threads that is not 1 to 1024.
    pub fn with_threads(most: usize) -> Result<Self> {
        if !(1..=MOST).contains(&most) {
            let text = format!("{most} threads requested; valid are 1 to {MOST}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(Self { handle: Arc::new(Handle(Workers::new(most))), group: Arc::default() })
    }

    /// Returns a handle of the same threads with a count of its own: its [`drain`](Self::drain) waits for what was started
    /// through it and its clones.
    #[must_use]
    pub fn group(&self) -> Self {
        Self { handle: Arc::clone(&self.handle), group: Arc::default() }
    }

    /// Returns the largest number of workers.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.handle.0.most()
    }

    /// Returns how many threads exist now, those for blocking calls included.
    #[must_use]
    pub fn live_threads(&self) -> usize {
        self.handle.0.live_threads()
    }

    /// Runs a future on the workers, with normal priority. Its parts run first in, first out; see
    /// [`yield_now`](crate::yield_now). It must not block a worker: use [`fence`](Self::fence) and
    /// [`spawn_blocking`](Self::spawn_blocking).
    ///
    /// A future that panics ends with [`ErrorKind::Interrupted`](transload_core::ErrorKind::Interrupted). One that is
    /// pending and that no waker can wake any more is dropped.
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.spawn_at(StreamPriority::Normal, future)
    }

    /// Like [`spawn`](Self::spawn), but with a priority: workers take what is ready of a higher one first.
    pub fn spawn_at<F>(&self, priority: StreamPriority, future: F) -> Task<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let (task, completer) = Task::pending();
        if let Err(error) = self.handle.0.start_first() {
            discard(future);
            completer.complete(Err(error));
            return task;
        }
        let live = LiveGuard::new(&self.group, &self.handle.0);
        self.schedule(priority, async move {
            // Dropped last, even if the task is dropped early: after a drain the result is set.
            let _live = live;
            let completer = completer;
            let outcome = guarded(future).await;
            completer.complete(outcome);
        });
        task
    }

    /// Like [`spawn_at`](Self::spawn_at), but without a handle: the future reports its own result, and a panic is discarded.
    /// Allocates once.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](transload_core::ErrorKind::Io) if the system refused the first thread; the future is dropped.
    pub fn spawn_detached<F>(&self, priority: StreamPriority, future: F) -> Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let future = self.with_worker(future)?;
        self.schedule(priority, self.detached(future));
        Ok(())
    }

    /// Like [`spawn_detached`](Self::spawn_detached), for the task that advances a host timeline:
    /// [`run_one_of`](Self::run_one_of) can run it while all workers are blocked.
    ///
    /// # Errors
    /// As for `spawn_detached`.
    pub fn spawn_detached_of<F>(
        &self,
        timeline: TimelineId,
        priority: StreamPriority,
        future: F,
    ) -> Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let future = self.with_worker(future)?;
        self.runnable(Some(timeline), priority, self.detached(future)).schedule();
        Ok(())
    }

    /// Runs the ready task of a timeline, started by [`spawn_detached_of`](Self::spawn_detached_of), on the calling thread until
    /// it ends, waits or yields. Returns `false` if none is ready. For work that must end although every worker may be blocked
    /// in a driver call.
    pub fn run_one_of(&self, timeline: TimelineId) -> bool {
        self.handle.0.run_one_of(timeline)
    }

    /// Like [`spawn_detached`](Self::spawn_detached) for several futures, but wakes as many workers at once instead of one
    /// by one.
    ///
    /// # Errors
    /// As for `spawn_detached`; all futures are dropped then.
    pub fn spawn_all<F>(&self, priority: StreamPriority, futures: impl Iterator<Item = F>) -> Result<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.handle.0.start_first()?;
        // The iterator is the caller's: if it panics, no future has started.
        let runnables = futures.map(|future| self.runnable(None, priority, self.detached(future)));
        let runnables: SmallVec<[Runnable; 16]> = runnables.collect();
        self.handle.0.push_all(rank(priority), runnables);
        Ok(())
    }

    /// Starts the first worker, if there is none: what is spawned later then needs no other.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](transload_core::ErrorKind::Io) if the system refuses it.
    pub fn start_first(&self) -> Result<()> {
        self.handle.0.start_first()
    }

    /// Wakes up to `count` sleeping workers for tasks that the caller is about to start: they look for tasks for some hundred microseconds.
    pub fn wake(&self, count: usize) {
        self.handle.0.wake(count);
    }

    /// Starts the first worker, and returns the future.
    ///
    /// # Errors
    /// As for [`start_first`](Self::start_first); the future is dropped.
    fn with_worker<F>(&self, future: F) -> Result<F> {
        match self.start_first() {
            Ok(()) => Ok(future),
            Err(error) => {
                discard(future);
                Err(error)
            }
        }
    }

    fn detached<F: Future<Output = ()>>(&self, future: F) -> impl Future<Output = ()> + use<F> {
        let live = LiveGuard::new(&self.group, &self.handle.0);
        async move {
            let _live = live;
            let _panic = guarded(future).await;
        }
    }

    fn schedule(&self, priority: StreamPriority, body: impl Future<Output = ()> + Send + 'static) {
        self.runnable(None, priority, body).schedule();
    }

    fn runnable(
        &self,
        of: Option<TimelineId>,
        priority: StreamPriority,
        body: impl Future<Output = ()> + Send + 'static,
    ) -> Runnable {
        let (workers, rank) = (Arc::clone(&self.handle.0), rank(priority));
        let schedule = move |runnable| workers.push(rank, runnable);
        let (runnable, unseen) = async_task::Builder::new().metadata(of).spawn(|_| body, schedule);
        unseen.detach();
        runnable
    }

    /// Runs a closure that may block in the kernel or a driver, on a spare thread. At most as many of one key run at once as
    /// the key permits; the others wait in order, and no other key waits for them.
    pub fn spawn_blocking<T, C>(&self, key: &BlockingKey, closure: C) -> Task<T>
    where
        T: Send + 'static,
        C: FnOnce() -> T + Send + 'static,
    {
        let (task, completer) = Task::pending();
        let live = LiveGuard::new(&self.group, &self.handle.0);
        blocking::start(&self.handle.0, key, live, completer, closure);
        task
    }

    /// Runs a closure on a spare thread at once, with no limit by a key. Returns `false` if all spare threads are busy and the system
    /// refuses another; the closure is then dropped, or runs later.
    pub fn try_spawn_blocking(&self, closure: impl FnOnce() + Send + 'static) -> bool {
        let (_unseen, completer) = Task::pending();
        let live = LiveGuard::new(&self.group, &self.handle.0);
        blocking::start(&self.handle.0, &BlockingKey::new(1), live, completer, closure)
    }

    /// Runs a closure on a thread of its own, which ends with it. For a long call that waits for other calls of this executor: on a
    /// thread of [`spawn_blocking`](Self::spawn_blocking) it could keep them from the only one, if the system refuses more.
    pub fn spawn_thread<T, C>(&self, closure: C) -> Task<T>
    where
        T: Send + 'static,
        C: FnOnce() -> T + Send + 'static,
    {
        let (task, completer) = Task::pending();
        let live = LiveGuard::new(&self.group, &self.handle.0);
        let body = move || {
            enter();
            completer.complete(catch_panic(closure));
            drop(live);
        };
        match self.handle.0.own_threads.start(self.handle.0.next_name(), body) {
            Ok(()) => task,
            Err(error) => {
                let error = Error::caused_by(ErrorKind::Io, "cannot start a thread for a long call", error);
                let (task, completer) = Task::pending();
                completer.complete(Err(error));
                task
            }
        }
    }

    /// Returns a future of the fence's completion, for tasks of this executor: its idle workers poll the fence, then sleep
    /// until the timeline wakes them. Other futures' executors may poll it as well. It blocks no thread, keeps the executor's threads, and
    /// may be dropped at any time.
    ///
    /// # Errors
    /// By the future: the error of the fence's work, or of its device; [`ErrorKind::Io`](transload_core::ErrorKind::Io) if no worker could be started
    /// that polls, and the work goes on.
    pub fn fence(&self, fence: &Fence) -> impl Future<Output = Result<()>> + Send + Unpin + use<> {
        fences::complete(Arc::clone(&self.handle.0), Arc::clone(&self.handle), fence.clone())
    }

    /// Counts the calling thread as live work until the guard is dropped. For a thread that does part of a task's work while
    /// it waits for the task.
    pub fn helping(&self) -> Helping {
        Helping::new(LiveGuard::new(&self.group, &self.handle.0))
    }

    /// Blocks until all work started through this handle, its clones, or guards of [`helping`](Self::helping) has ended:
    /// tasks, pending or running, and blocking calls.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](transload_core::ErrorKind::Unsupported) on a thread of an executor and on a thread that
    /// helps, where it would wait for its own caller.
    pub fn drain(&self) -> Result<()> {
        refuse_to_drain()?;
        self.group.drain();
        report::emit_deferred();
        Ok(())
    }
}

fn rank(priority: StreamPriority) -> usize {
    match priority {
        StreamPriority::High => 0,
        StreamPriority::Normal => 1,
        StreamPriority::Low => 2,
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("threads", &self.threads()).finish_non_exhaustive()
    }
}
