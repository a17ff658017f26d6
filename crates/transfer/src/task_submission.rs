//! Submits for a task: on the thread that polls, or on one of the executor if that takes long, and again after whatever blocked it.

use std::{mem, sync::Arc};

use parking_lot::Mutex;
use transload_core::{
    DeviceId, Error, ErrorKind, Fence, MemoryKind, Place, Queue, Result, Transfer, TransferId,
    TrySubmitError, catch_panic, require_complete,
};

use crate::{
    CrossBackendTransferManager, TransferOptions,
    attempt::Deferral,
    context::{ManagerContext, SubmissionTarget},
    report_events,
};

/// A submission that owns what it needs.
pub(crate) struct TaskSubmission<W> {
    pub(crate) id: Option<TransferId>,
    pub(crate) manager: CrossBackendTransferManager,
    pub(crate) options: TransferOptions,
    pub(crate) after: Vec<Fence>,
    pub(crate) queue: Option<Arc<dyn Queue>>,
    /// Whether the work on the caller's queue was waited for.
    pub(crate) waited: bool,
    pub(crate) work: W,
}

/// What is submitted.
pub(crate) trait Work: Sized + Send + 'static {
    /// The handle.
    type Submitted: Send;

    /// Submits it, unless that would block the thread, or take long though it may not.
    ///
    /// # Errors
    /// When to try again.
    fn attempt(task: &mut TaskSubmission<Self>, may_be_slow: bool) -> Result<Self::Submitted, Deferral>;

    /// Returns whether a driver may copy pageable memory during the call.
    fn uses_pageable(&self) -> bool;

    /// Creates the handle of one whose last attempt was refused or panicked; `transfer` is the refusal.
    fn refused(work: Option<Self>, context: &Arc<ManagerContext>, transfer: Transfer) -> Self::Submitted;
}

/// A submission on its way to a thread of the executor. Dropped before that thread takes it, it drops it.
struct Posted<W>(Arc<Mutex<Option<TaskSubmission<W>>>>);

impl<W> Drop for Posted<W> {
    fn drop(&mut self) {
        let task = self.0.lock().take();
        drop(task);
    }
}

/// Returns whether a place is memory that a driver copies during the call.
pub(crate) fn is_pageable(place: Place) -> bool {
    place == Place::new(DeviceId::Cpu, MemoryKind::Pageable)
}

impl<W: Work> TaskSubmission<W> {
    /// Attempts it on a thread of the executor.
    fn attempt_elsewhere(&mut self) -> Result<W::Submitted, Deferral> {
        if let Some(queue) = self.queue.as_deref() {
            if is_of_another_thread(queue) {
                return Err(Deferral::QueueOfAnotherThread);
            }
            // The driver would keep this thread until the queue has come to the copy. Not twice: others may enqueue for ever.
            if !mem::replace(&mut self.waited, true)
                && self.work.uses_pageable()
                && let Some(fence) = queue.current_fence()
                && let Err(TrySubmitError::WouldBlock(work)) = require_complete(&[fence], |_| false)
            {
                return Err(Deferral::Blocked(work));
            }
        }
        W::attempt(self, true)
    }

    pub(crate) async fn submit(self) -> W::Submitted {
        let (mut task, mut may_be_slow) = (self, false);
        loop {
            let attempt = 'attempt: {
                match W::attempt(&mut task, may_be_slow) {
                    Err(Deferral::Slow(lane)) => {
                        let id = task.id;
                        if let Some(id) = id {
                            report_events::deferred(id);
                        }
                        let context = Arc::clone(&task.manager.context);
                        let queue = task.queue.as_ref().map(|queue| queue.timeline().id());
                        let queue =
                            queue.filter(|_| !transload_core::mutant!("transfer/submissions-by-stream"));
                        let target = queue.map_or(SubmissionTarget::Lane(lane), SubmissionTarget::Queue);
                        let key = context.submitting.key(target);
                        let posted = Posted(Arc::new(Mutex::new(Some(task))));
                        let attempt = {
                            let (key, task) = (Arc::clone(&key), Arc::clone(&posted.0));
                            let span = report_events::current_span();
                            move || {
                                let _keeps = key;
                                let mut task = task.lock().take()?;
                                // A panic leaves what was submitted before.
                                let attempt = || span.in_scope(|| task.attempt_elsewhere());
                                Some((catch_panic(attempt), task))
                            }
                        };
                        let (error, work) = match context.executor.spawn_blocking(&key, attempt).await {
                            Ok(Some((Ok(attempt), same))) => {
                                task = same;
                                break 'attempt attempt;
                            }
                            Ok(Some((Err(panic), same))) => (panic, Some(same.work)),
                            // No thread took it.
                            outcome => {
                                let dropped = || Error::new(ErrorKind::Interrupted, "the copy was dropped");
                                let error = outcome.err().unwrap_or_else(dropped);
                                (error, posted.0.lock().take().map(|same| same.work))
                            }
                        };
                        context.refused(id, &error);
                        let refused = Transfer::refused_with(error, id, Arc::clone(&context) as _);
                        return W::refused(work, &context, refused);
                    }
                    attempt => attempt,
                }
            };
            match attempt {
                Ok(submitted) => return submitted,
                Err(Deferral::Blocked(blocked)) => {
                    if let Some(id) = task.id {
                        report_events::blocked(id);
                    }
                    blocked.await;
                }
                Err(Deferral::QueueOfAnotherThread) => may_be_slow = true,
                Err(Deferral::Slow(_)) => {}
            }
        }
    }
}

/// Returns whether the calling thread may not use the queue: it is a per-thread default stream.
fn is_of_another_thread(queue: &dyn Queue) -> bool {
    // Unlike `raw_handle` this exposes no handle.
    queue.with_raw_handle(&mut |_| {}).is_err_and(|error| error.kind() == ErrorKind::InvalidArgument)
}
