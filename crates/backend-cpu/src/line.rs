//! An ordered line of jobs and its timeline. At most one thread runs a line at a time; a line whose next job must wait
//! for a fence occupies no thread: it is woken.

use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Wake, Waker},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use transload_core::{
    DeviceId, Error, ErrorKind, Operation, Result, StreamPriority, Timeline, TimelineId, Timing,
    next_timeline_id,
};

use crate::{
    job::{Job, Outcome},
    workers::Workers,
};

/// Durations and errors that nobody asked for are kept up to this many; the oldest go first.
const KEPT: usize = 1024;
/// Looks at the counter before a waiting thread goes to sleep: a few microseconds.
const LOOKS: u32 = 200;

/// A line of jobs.
pub(crate) struct Line {
    id: TimelineId,
    priority: StreamPriority,
    workers: Arc<Workers>,
    reached: AtomicU64,
    state: Mutex<State>,
    /// Signalled when a point is reached and when its job is retired.
    done: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// The last point given out.
    enqueued: u64,
    /// The last point whose job has let go of its buffers.
    retired: u64,
    activity: Activity,
    wakers: Vec<(u64, Waker)>,
    durations: VecDeque<(u64, Duration)>,
    failures: VecDeque<(u64, Error)>,
    /// The first failure since the last drain.
    undrained: Option<Error>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Activity {
    /// No jobs.
    #[default]
    Idle,
    /// On the workers' board.
    Queued,
    /// Some thread runs a job.
    Running,
    /// The first job waits for a fence, which will wake the line.
    Blocked,
}

/// What stands before the first job.
#[allow(clippy::large_enum_variant, reason = "boxing would allocate for every job")]
enum Next {
    Job(Job),
    Wait(transload_core::Fence),
    Nothing,
}

impl Line {
    pub(crate) fn new(priority: StreamPriority, workers: Arc<Workers>) -> Self {
        Self {
            id: next_timeline_id(),
            priority,
            workers,
            reached: AtomicU64::new(0),
            state: Mutex::default(),
            done: Condvar::new(),
        }
    }

    pub(crate) fn priority(&self) -> StreamPriority {
        self.priority
    }

    /// How many jobs are not over.
    pub(crate) fn outstanding(&self) -> u64 {
        let state = self.state.lock();
        state.enqueued - self.reached()
    }

    /// Runs an operation at once on the calling thread if the line is idle; answers its point.
    ///
    /// # Safety
    /// As for [`crate::copy::perform`].
    pub(crate) unsafe fn run_inline(
        self: &Arc<Self>,
        operation: &Operation<'_>,
        timing: Timing,
    ) -> Option<u64> {
        let mut state = self.state.lock();
        if state.activity != Activity::Idle {
            return None;
        }
        state.activity = Activity::Running;
        state.enqueued += 1;
        let point = state.enqueued;
        drop(state);
        // SAFETY: the caller's promise.
        let outcome = Outcome::of(timing, || unsafe { self.workers.perform(operation) });
        self.finish(point, outcome, None);
        Some(point)
    }

    /// Puts a job at the end of the line; answers its point.
    pub(crate) fn push(self: &Arc<Self>, mut job: Job) -> u64 {
        self.workers.job_begins();
        let mut state = self.state.lock();
        state.enqueued += 1;
        let point = state.enqueued;
        job.point = point;
        state.jobs.push_back(job);
        let was_idle = state.activity == Activity::Idle;
        if was_idle {
            state.activity = Activity::Queued;
        }
        drop(state);
        if was_idle {
            self.workers.push(Arc::clone(self));
        }
        point
    }

    /// Called by a worker that took the line off the board: does the first job, or arranges to be woken for it.
    pub(crate) fn run(self: &Arc<Self>) {
        self.state.lock().activity = Activity::Running;
        loop {
            match self.next() {
                Next::Nothing => return,
                Next::Wait(fence) => {
                    if fence.is_over() {
                        self.forget_first_fence();
                    } else if !self.block_on(&fence) {
                        return;
                    }
                }
                Next::Job(job) => {
                    // SAFETY: the job came in by `Queue::enqueue`, whose caller promised that nothing else uses the bytes
                    // in conflict until the point is reached; everything before it is over.
                    let outcome =
                        Outcome::of(job.timing, || unsafe { self.workers.perform(&job.operation()) });
                    self.finish(job.point, outcome, Some(job));
                    // The workers choose anew after every job, so that priorities mean something.
                    return;
                }
            }
        }
    }

    fn next(&self) -> Next {
        let mut state = self.state.lock();
        match state.jobs.front() {
            Some(job) => match job.after.last() {
                Some(fence) => Next::Wait(fence.clone()),
                None => state.jobs.pop_front().map_or(Next::Nothing, Next::Job),
            },
            None => {
                state.activity = Activity::Idle;
                Next::Nothing
            }
        }
    }

    /// Only the thread that runs the line takes from its front.
    fn forget_first_fence(&self) {
        let fence = self.state.lock().jobs.front_mut().and_then(|job| job.after.pop());
        drop(fence);
    }

    /// Arranges that the fence wakes the line; answers whether the caller still runs it, since the fence is over.
    fn block_on(self: &Arc<Self>, fence: &transload_core::Fence) -> bool {
        // First the state, then the waker: a wake in between must find the line blocked.
        self.state.lock().activity = Activity::Blocked;
        let waker = Waker::from(Arc::clone(self));
        if !fence.timeline().wake_at(fence.point(), &waker) {
            return false;
        }
        let mut state = self.state.lock();
        if state.activity == Activity::Blocked {
            state.activity = Activity::Running;
            return true;
        }
        // An earlier waker was faster: the line is on the board.
        false
    }

    /// Reaches the point, tells everyone, lets go of the buffers, and hands the line on.
    fn finish(self: &Arc<Self>, point: u64, outcome: Outcome, job: Option<Job>) {
        let mut state = self.state.lock();
        if let Err(error) = outcome.result {
            state.undrained.get_or_insert_with(|| error.clone());
            keep(&mut state.failures, (point, error));
        }
        if let Some(took) = outcome.took {
            keep(&mut state.durations, (point, took));
        }
        self.reached.store(point, Ordering::Release);
        drop(state);
        self.done.notify_all();
        self.wake_up_to(point);
        // The point is reached, so memory that was dropped meanwhile is freed here and not parked. Its owner may be the
        // user's type: its panic is not ours.
        let queued = job.is_some();
        let _panic = catch_unwind(AssertUnwindSafe(|| drop(job)));
        let mut state = self.state.lock();
        state.retired = point;
        let more = !state.jobs.is_empty();
        state.activity = if more { Activity::Queued } else { Activity::Idle };
        drop(state);
        self.done.notify_all();
        if more {
            self.workers.push(Arc::clone(self));
        }
        if queued {
            self.workers.job_ended();
        }
    }

    /// Wakes who waits for points up to this one, a few at a time, with no lock held.
    fn wake_up_to(&self, point: u64) {
        loop {
            let mut due = SmallVec::<[Waker; 4]>::new();
            let mut state = self.state.lock();
            while due.len() < due.inline_size()
                && let Some(index) = state.wakers.iter().position(|(at, _)| *at <= point)
            {
                due.push(state.wakers.swap_remove(index).1);
            }
            drop(state);
            if due.is_empty() {
                return;
            }
            for waker in due {
                // A waker is the user's code: its panic must not end a worker.
                let _panic = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
        }
    }

    /// Blocks until every job enqueued so far is over and has let go of its buffers.
    ///
    /// # Errors
    /// The first failure since the last call.
    pub(crate) fn drain(&self) -> Result<()> {
        let mut state = self.state.lock();
        let last = state.enqueued;
        while state.retired < last {
            self.done.wait(&mut state);
        }
        state.undrained.take().map_or(Ok(()), Err)
    }

    fn outcome(state: &State, point: u64) -> Result<()> {
        match state.failures.iter().find(|(at, _)| *at == point) {
            Some((_, error)) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

fn keep<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() == KEPT {
        list.pop_front();
    }
    list.push_back(item);
}

impl Wake for Line {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.activity == Activity::Blocked {
            state.activity = Activity::Queued;
            drop(state);
            self.workers.push(Arc::clone(self));
        }
    }
}

// SAFETY: a point is counted once its work has returned; identities are fresh.
unsafe impl Timeline for Line {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        if self.reached() < point {
            return Ok(false);
        }
        Self::outcome(&self.state.lock(), point).map(|()| true)
    }

    fn wait(&self, point: u64) -> Result<()> {
        for _ in 0..LOOKS {
            if self.reached() >= point {
                break;
            }
            std::hint::spin_loop();
        }
        let mut state = self.state.lock();
        if point > state.enqueued {
            let text = format!("point {point} was never enqueued; the last one is {}", state.enqueued);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        while self.reached() < point {
            self.done.wait(&mut state);
        }
        Self::outcome(&state, point)
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if self.reached() >= point {
            return true;
        }
        // A future that is polled again brings the same waker.
        if !state.wakers.iter().any(|(at, known)| *at == point && known.will_wake(waker)) {
            state.wakers.push((point, waker.clone()));
        }
        false
    }

    /// A worker may panic.
    fn can_fail(&self) -> bool {
        true
    }

    fn take_duration(&self, point: u64) -> Result<Option<Duration>> {
        let mut state = self.state.lock();
        let index = state.durations.iter().position(|(at, _)| *at == point);
        Ok(index.and_then(|index| state.durations.remove(index)).map(|(_, took)| took))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
