//! A queue's operations, in order, and its timeline. One thread at a time runs a queue. A copy that runs inline
//! acquires an idle queue by one atomic operation and releases it by another; everything else takes a lock.

mod timeline;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use smallvec::SmallVec;
use transload_core::{
    Error, ErrorKind, Fence, Operation, OperationSample, PendingStamp, PointSignal, QueueTally, Result,
    SinkSlot, Stamp, StreamPriority, Timeline, TimelineId, Timing, catch_panic, next_timeline_id,
};
use transload_executor::{Executor, yield_now};

use crate::{
    copy::{self, Partition, Stores},
    failures::Failures,
    parallel_op::ParallelOp,
    queued_op::{Outcome, QueuedOp},
};

/// Most durations, and failures, that are kept. The oldest durations are dropped first.
const MAX_KEPT: usize = 1024;
/// Checks of the counter before a waiting thread sleeps, for a few microseconds.
const SPIN_CHECKS: u32 = 200;

/// Time after which a spare thread runs an operation that a device waits for: the workers may all be blocked in calls that
/// wait for that device.
const RESCUE_AFTER: Duration = Duration::from_millis(20);

/// Set while a thread runs the queue, or a task is about to.
const BUSY: u64 = 1;
/// Set while there are waiters: an inline operation must then check the state when it ends.
const HAS_WAITERS: u64 = 2;
/// Unit of the last enqueued point, above the flags.
const POINT: u64 = 4;

/// Sizes in bytes from which an operation that a task runs is run differently.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thresholds {
    /// By several workers.
    pub(crate) parallel_from: usize,
    /// With streaming stores, if it copies.
    pub(crate) stream_from: usize,
}

/// An ordered queue. Aligned to cache lines, since a queue is mostly used by one thread.
#[repr(align(128))]
pub(crate) struct OpQueue {
    /// The last enqueued point, in [`POINT`]s, and the flags. Changed under the lock, except that an inline operation
    /// acquires a queue that is not [`BUSY`], and releases it if unchanged.
    word: AtomicU64,
    reached: AtomicU64,
    /// Whether any operation failed, to check without the lock.
    has_failed: AtomicBool,
    /// Whether any operation was measured, to check without the lock.
    was_measured: AtomicBool,
    state: Mutex<State>,
    /// Notified when a point is reached.
    done: Condvar,
    id: TimelineId,
    priority: StreamPriority,
    executor: Executor,
    thresholds: Thresholds,
    sink: Arc<SinkSlot>,
    /// Counts for a profiler.
    tally: Arc<QueueTally>,
    this: Weak<Self>,
}

#[derive(Default)]
struct State {
    ops: VecDeque<QueuedOp>,
    /// Threads that wait for `done`.
    waiting: usize,
    wakers: Vec<(u64, Waker)>,
    /// For devices that wait for the next point.
    signals: Vec<PointSignal>,
    /// Stamps of points that are not reached, in order.
    stamps: VecDeque<(u64, PendingStamp)>,
    /// Whether a task was spawned for the first operation of `ops` and has not begun.
    is_spawned: bool,
    /// The operation that a task runs and that waits for no fence.
    running: Option<u64>,
    /// The last point that a spare thread watches.
    watched: u64,
    durations: VecDeque<(u64, Duration)>,
    failures: Failures,
    /// The first failure since the last drain.
    unreported: Option<Error>,
}

impl State {
    /// Sets the stamps of points up to this one. Under the lock, so that stamps do not decrease.
    fn set_stamps(&mut self, point: u64) {
        while self.stamps.front().is_some_and(|(at, _)| *at <= point) {
            if let Some((_, stamp)) = self.stamps.pop_front() {
                stamp.set(Instant::now());
            }
        }
    }
}

/// A task's right to run a queue. Its drop starts the next task, or makes the queue idle.
struct RunPermit {
    queue: Arc<OpQueue>,
    begun: bool,
}

impl Drop for RunPermit {
    fn drop(&mut self) {
        // The task never ran, since no thread could be started for it. Another task would fail likewise, so end the
        // operations. Not one that must still wait for others, which was enqueued after a worker had been started: a task
        // is started for it and the rest.
        let may_end = |op: &QueuedOp| op.after.iter().all(Fence::is_known_complete);
        while !self.begun
            && let Some(op) = self.queue.pop_if(may_end)
        {
            drop(RunningOp {
                queue: &self.queue,
                point: op.point,
                timing: op.timing,
                sample: None,
                outcome: None,
            });
            let _panic = catch_panic(|| drop(op));
        }
        self.queue.release();
    }
}

/// An operation in progress. Its drop reaches its point: with the outcome, or with an error if it was abandoned.
struct RunningOp<'a> {
    queue: &'a Arc<OpQueue>,
    point: u64,
    timing: Timing,
    sample: Option<OperationSample>,
    outcome: Option<Outcome>,
}

impl Drop for RunningOp<'_> {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| {
            let text =
                "the operation was abandoned before it moved a byte: its task lost its thread or its waker";
            Outcome { result: Err(Error::new(ErrorKind::Interrupted, text)), times: None }
        });
        self.queue.pass(self.sample.take(), &outcome);
        let mut state = self.queue.state.lock();
        self.queue.record(&mut state, self.point, self.timing, outcome);
        state.set_stamps(self.point);
        // Under the lock: a thread between its check and its wait must not miss it.
        self.queue.reached.store(self.point, Ordering::Release);
        state.running = None;
        drop(state);
        if !transload_core::mutant!("cpu/wake") {
            self.queue.wake_up_to(self.point);
        }
    }
}

impl OpQueue {
    pub(crate) fn new(
        priority: StreamPriority,
        executor: Executor,
        thresholds: Thresholds,
        sink: Arc<SinkSlot>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            word: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            was_measured: AtomicBool::new(false),
            state: Mutex::default(),
            done: Condvar::new(),
            id: next_timeline_id(),
            priority,
            executor,
            thresholds,
            sink,
            tally: Arc::default(),
        })
    }

    pub(crate) fn priority(&self) -> StreamPriority {
        self.priority
    }

    /// Returns the number of incomplete operations.
    pub(crate) fn outstanding(&self) -> u64 {
        // In this order, so that the difference is never negative.
        let reached = self.reached();
        self.enqueued().saturating_sub(reached)
    }

    fn enqueued(&self) -> u64 {
        self.word.load(Ordering::Acquire) / POINT
    }

    /// Runs an operation on the calling thread if the queue is idle. Returns its point. Takes no lock unless there are
    /// waiters, the operation fails, or it is measured.
    ///
    /// # Safety
    /// Those of [`copy::perform_units`], for the whole operation.
    pub(crate) unsafe fn run_inline(
        self: &Arc<Self>,
        operation: &Operation<'_>,
        timing: Timing,
        sample: &mut Option<OperationSample>,
    ) -> Option<u64> {
        let idle = self.word.load(Ordering::Relaxed);
        let taken = (idle + POINT) | BUSY;
        if idle & BUSY != 0 {
            return None;
        }
        self.word.compare_exchange(idle, taken, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let point = taken / POINT;
        let is_timed = timing == Timing::Measured || sample.is_some();
        // SAFETY: the caller's promise.
        let outcome = Outcome::of(is_timed, || unsafe { copy::perform(operation, Stores::Cached) });
        self.pass(sample.take(), &outcome);
        if outcome.result.is_err() || timing == Timing::Measured {
            self.record(&mut self.state.lock(), point, timing, outcome);
        }
        self.reached.store(point, Ordering::Release);
        let returned = taken & !BUSY;
        if taken & HAS_WAITERS != 0
            || self.word.compare_exchange(taken, returned, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            // There are waiters or new operations.
            self.wake_up_to(point);
            self.release();
        }
        Some(point)
    }

    /// Appends an operation. Returns its point.
    pub(crate) fn push(self: &Arc<Self>, mut op: QueuedOp) -> u64 {
        let mut state = self.state.lock();
        let add = |word: u64| (word + POINT) | BUSY;
        let before = self.word.update(Ordering::AcqRel, Ordering::Relaxed, add);
        let point = before / POINT + 1;
        op.point = point;
        state.ops.push_back(op);
        drop(state);
        if before & BUSY == 0 {
            self.start();
        }
        point
    }

    /// Starts the executor's first worker, if it has none.
    pub(crate) fn start_first(&self) -> Result<()> {
        self.executor.start_first()
    }

    /// Spawns a task that runs the queue. The caller has set [`BUSY`].
    fn start(self: &Arc<Self>) {
        let permit = RunPermit { queue: Arc::clone(self), begun: false };
        self.state.lock().is_spawned = true;
        // On an error, which the executor reports, the permit's drop ends the operations with errors.
        let _theirs = self.executor.spawn_detached_of(self.id, self.priority, run(permit));
    }

    /// Releases the queue: starts a task if operations are queued, else makes it idle.
    fn release(self: &Arc<Self>) {
        let state = self.state.lock();
        if state.ops.is_empty() || transload_core::mutant!("cpu/pass-on") {
            let is_watched = state.waiting > 0 || !state.wakers.is_empty();
            let flags = if is_watched { HAS_WAITERS } else { 0 };
            self.word
                .update(Ordering::AcqRel, Ordering::Relaxed, |word| (word & !(BUSY | HAS_WAITERS)) | flags);
        } else {
            drop(state);
            self.start();
        }
    }

    fn pop(&self) -> Option<QueuedOp> {
        self.pop_if(|_| true)
    }

    /// Takes the first operation, if it is one for which `which` holds.
    fn pop_if(&self, which: impl FnOnce(&QueuedOp) -> bool) -> Option<QueuedOp> {
        let mut state = self.state.lock();
        state.is_spawned = false;
        let op = state.ops.pop_front_if(|op| which(op))?;
        state.running = op.after.is_empty().then_some(op.point);
        Some(op)
    }

    /// Decides whether a profiler is given the operation.
    #[inline]
    pub(crate) fn sample(&self, operation: &Operation<'_>) -> Option<OperationSample> {
        self.sink.sample_operation(&self.tally, operation)
    }

    /// Returns when everything enqueued so far is complete: set by what ends it, before anything later begins.
    pub(crate) fn stamp(&self) -> Stamp {
        let mut state = self.state.lock();
        let point = self.enqueued();
        let (stamp, pending) = Stamp::of_host_later();
        state.stamps.push_back((point, pending));
        if self.reached() < point {
            self.word.fetch_or(HAS_WAITERS, Ordering::AcqRel);
        }
        // Checked after the flag was set: an inline operation that ended before did not see it.
        state.set_stamps(self.reached());
        stamp
    }

    /// Passes an ended operation to the profiler.
    fn pass(&self, sample: Option<OperationSample>, outcome: &Outcome) {
        if let Some(sample) = sample {
            let times = outcome.times.map(|(begin, end)| (Stamp::of_host(begin), Stamp::of_host(end)));
            self.sink.pass(sample, (self, self.priority), None, times);
        }
    }

    fn record(self: &Arc<Self>, state: &mut State, point: u64, timing: Timing, outcome: Outcome) {
        if let Err(error) = outcome.result {
            state.unreported.get_or_insert_with(|| error.clone());
            // Two handles of the `CpuQueue`, and one of the caller: no fence is left that could query an earlier point.
            // A fence being created has its handle already.
            if state.failures.len() >= MAX_KEPT
                && (Arc::strong_count(self) <= 3 || transload_core::mutant!("cpu/keep-failures"))
            {
                state.failures.clear();
            }
            state.failures.add(point, error);
            self.has_failed.store(true, Ordering::Relaxed);
        }
        if timing == Timing::Measured
            && let Some((begin, end)) = outcome.times
        {
            let took = end.duration_since(begin);
            if state.durations.len() == MAX_KEPT {
                state.durations.pop_front();
            }
            state.durations.push_back((point, took));
            self.was_measured.store(true, Ordering::Relaxed);
        }
    }

    /// Sends the signals for this point, then wakes the tasks and threads that wait for points up to it. Wakes a few at a
    /// time, with no lock held.
    fn wake_up_to(&self, point: u64) {
        let mut state = self.state.lock();
        state.set_stamps(point);
        // All before anything is dropped or woken, which may call a driver.
        let signals = std::mem::take(&mut state.signals);
        drop(state);
        signals.iter().for_each(|signal| signal());
        drop(signals);
        loop {
            let mut due = SmallVec::<[Waker; 4]>::new();
            let mut state = self.state.lock();
            let threads_wait = state.waiting > 0;
            while due.len() < due.inline_size()
                && let Some(index) = state.wakers.iter().position(|(at, _)| *at <= point)
            {
                due.push(state.wakers.swap_remove(index).1);
            }
            drop(state);
            if threads_wait {
                self.done.notify_all();
            }
            if due.is_empty() {
                return;
            }
            for waker in due {
                // A waker is user code: ignore its panic.
                let _panic = catch_panic(|| waker.wake());
            }
        }
    }

    /// Blocks until every operation enqueued so far is complete.
    ///
    /// # Errors
    /// The first failure since the last call.
    pub(crate) fn drain(&self) -> Result<()> {
        self.block_until(self.enqueued());
        self.state.lock().unreported.take().map_or(Ok(()), Err)
    }

    fn block_until(&self, point: u64) {
        for _ in 0..SPIN_CHECKS {
            if self.reached() >= point {
                return;
            }
            std::hint::spin_loop();
        }
        let mut state = self.state.lock();
        state.waiting += 1;
        if !transload_core::mutant!("cpu/watch") {
            self.word.fetch_or(HAS_WAITERS, Ordering::AcqRel);
        }
        while self.reached() < point {
            self.done.wait(&mut state);
        }
        state.waiting -= 1;
    }

    /// Runs the queue's task on a spare thread if the point is not reached in time. Returns `false` if no thread can be started.
    fn rescue(self: &Arc<Self>, point: u64) -> bool {
        let queue = Arc::clone(self);
        self.executor.try_spawn_blocking(move || {
            let mut state = queue.state.lock();
            state.waiting += 1;
            queue.word.fetch_or(HAS_WAITERS, Ordering::AcqRel);
            while queue.reached() < point {
                if queue.done.wait_for(&mut state, RESCUE_AFTER).timed_out() {
                    // Each run is one piece of a large operation.
                    MutexGuard::unlocked(&mut state, || {
                        while queue.reached() < point && queue.executor.run_one_of(queue.id) {}
                    });
                }
            }
            state.waiting -= 1;
        })
    }

    fn outcome(&self, point: u64) -> Result<()> {
        if !self.has_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.state.lock().failures.of(point)
    }
}

/// Runs a queue's operations in order, each after its fences. Yields to other tasks in between.
async fn run(mut permit: RunPermit) {
    permit.begun = true;
    let queue = &permit.queue;
    while let Some(mut op) = queue.pop() {
        let is_timed = op.is_timed();
        let sample = op.sample.take();
        let mut run = RunningOp { queue, point: op.point, timing: op.timing, sample, outcome: None };
        for fence in op.after.iter().filter(|_| !transload_core::mutant!("cpu/come-after")) {
            // A failed dependency is reported by its own fence; the bytes are idle either way.
            let _over = queue.executor.fence(fence).await;
        }
        let stores = Stores::of(&op.operation(), queue.thresholds.stream_from);
        let partition = Partition::new(&op.operation(), queue.executor.threads());
        let is_shared =
            copy::bytes(&op.operation()) >= queue.thresholds.parallel_from && partition.pieces() > 1;
        let op = if is_shared {
            let (parallel, outcome) =
                ParallelOp::run((op, is_timed), (partition, stores), &queue.executor, queue.priority).await;
            run.outcome = Some(outcome);
            Err(parallel)
        } else {
            // SAFETY: the caller of `Queue::enqueue` promised that there is no conflicting use of the bytes until the
            // point is reached; everything before it is complete.
            run.outcome = Some(Outcome::of(is_timed, || unsafe { copy::perform(&op.operation(), stores) }));
            Ok(op)
        };
        // The point is reached first, so that memory dropped meanwhile is freed here and not pending free. Its owner may be
        // user code: ignore its panic.
        drop(run);
        let _panic = catch_panic(|| drop(op));
        yield_now().await;
    }
}
