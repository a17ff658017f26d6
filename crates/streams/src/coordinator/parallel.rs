//! Runs tasks on several streams concurrently and returns the outcome of each.

use std::{
    error::Error as StdError,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use parking_lot::Mutex;
use transload_core::{Error, ErrorKind, Fence, Result, TimelineId, events::report, panic_text};

use super::{MultiStreamCoordinator, no_streams};
use crate::CudaStream;

/// Stage in which a task failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskStage {
    /// The task returned an error.
    Submitting,
    /// The task panicked.
    Panicked,
    /// The work that it enqueued failed on the device.
    Running,
}

/// The error of one task.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskError {
    /// Index of the task, from 0.
    pub task: usize,
    /// The stream that it ran on.
    pub stream: TimelineId,
    /// Stage in which it failed.
    pub stage: TaskStage,
    /// The error.
    pub error: Error,
}

impl MultiStreamCoordinator {
    /// Runs tasks on the registered streams in turn: task *i* runs on stream *i* modulo their number. Returns one outcome
    /// per task, in order, when all work is complete.
    ///
    /// A task enqueues work on its stream and returns. Tasks of one stream run one after the other, those of different
    /// streams concurrently, on a thread per stream (one is the caller's). A task that fails or panics stops no other;
    /// the work that it enqueued before is waited for too, so the memory that it used may be freed.
    ///
    /// An error of a task's work on the device becomes that task's, with [`TaskStage::Running`]. If a device is lost,
    /// these are all its tasks that were not known to be complete.
    ///
    /// # Errors
    /// `InvalidArgument` without a stream.
    pub fn execute_parallel<T, F>(
        &self,
        tasks: impl IntoIterator<Item = F>,
    ) -> Result<Vec<Result<T, TaskError>>>
    where
        F: FnOnce(&CudaStream) -> Result<T> + Send,
        T: Send,
    {
        let streams = self.streams();
        if streams.is_empty() {
            return Err(no_streams());
        }
        let mut shares: Vec<Share<'_, F>> =
            streams.iter().map(|stream| Share { stream, tasks: Mutex::default() }).collect();
        for (share, (task, run)) in (0..streams.len()).cycle().zip(tasks.into_iter().enumerate()) {
            if let Some(share) = shares.get_mut(share) {
                share.tasks.get_mut().push((task, run));
            }
        }
        let mut submitted = submit_all(&shares);
        submitted.sort_unstable_by_key(|submitted| submitted.task);
        Ok(submitted.into_iter().map(Submitted::outcome).collect())
    }
}

/// The tasks of one stream. Locked, so that the caller can run them if no thread could be started.
struct Share<'a, F> {
    stream: &'a CudaStream,
    tasks: Mutex<Vec<(usize, F)>>,
}

fn submit_all<'a, T, F>(shares: &[Share<'a, F>]) -> Vec<Submitted<'a, T>>
where
    F: FnOnce(&CudaStream) -> Result<T> + Send,
    T: Send,
{
    let Some((own, others)) = shares.split_first() else { return Vec::new() };
    thread::scope(|scope| {
        let start = |share| {
            let thread = thread::Builder::new().name("transload-tasks".to_owned());
            let started = thread.spawn_scoped(scope, move || Share::submit(share));
            started.inspect_err(|error| report::thread_refused("tasks of a stream", error)).ok()
        };
        let busy = others.iter().filter(|share| !share.tasks.lock().is_empty());
        let threads: Vec<_> = busy.filter_map(start).collect();
        let mut submitted = own.submit();
        // Panics of tasks are caught inside.
        submitted.extend(threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()));
        // The tasks for which no thread could be started.
        submitted.extend(others.iter().flat_map(Share::submit));
        submitted
    })
}

impl<'a, F> Share<'a, F> {
    fn submit<T>(&self) -> Vec<Submitted<'a, T>>
    where
        F: FnOnce(&CudaStream) -> Result<T>,
    {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        let stream = self.stream;
        let submit = |(task, run): (usize, F)| {
            let outcome = match catch_unwind(AssertUnwindSafe(|| run(stream))) {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(error)) => Err((TaskStage::Submitting, error)),
                Err(payload) => {
                    let text = panic_text(payload);
                    report::panic_caught(&text);
                    let text = format!("the task panicked: {text}");
                    Err((TaskStage::Panicked, Error::new(ErrorKind::Interrupted, text)))
                }
            };
            Submitted { task, stream, outcome, end: stream.fence() }
        };
        tasks.into_iter().map(submit).collect()
    }
}

/// A task that has returned; its work may be in flight.
struct Submitted<'a, T> {
    task: usize,
    stream: &'a CudaStream,
    outcome: Result<T, (TaskStage, Error)>,
    end: Result<Fence>,
}

impl<T> Submitted<'_, T> {
    /// Waits for the task's work.
    fn outcome(self) -> Result<T, TaskError> {
        let Self { task, stream, outcome, end } = self;
        // Without a fence, wait for the whole stream.
        let ran = end.map_or_else(
            |error| {
                report::call_failed("waiting for a stream instead of a fence", stream.device(), &error);
                stream.synchronize()
            },
            |fence| fence.wait(),
        );
        let outcome = outcome.and_then(|value| match ran {
            Ok(()) => Ok(value),
            Err(error) => Err((TaskStage::Running, error)),
        });
        outcome.map_err(|(stage, error)| TaskError { task, stream: stream.id(), stage, error })
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, stream, stage, error } = self;
        let what = match stage {
            TaskStage::Submitting => "could not be submitted",
            TaskStage::Panicked => "panicked",
            TaskStage::Running => "failed on the device",
        };
        write!(f, "task {task} on {stream:?} {what}: {error}")
    }
}

impl StdError for TaskError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

impl From<TaskError> for Error {
    fn from(error: TaskError) -> Self {
        let kind = error.error.kind();
        Self::caused_by(kind, "running tasks", error)
    }
}
