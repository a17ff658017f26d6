//! What a transfer brings besides its options, why nothing was submitted, and what is tried instead.

use std::{cell::Cell, sync::Arc};

use transload_core::{
    CompletionHandler, DeviceId, Error, ErrorKind, Fence, Queue, RawBuffer, RefusalHandler, StreamPriority,
    Submission, Submitted, Transfer, TransferEvent, TransferId, TransferMethod, TransferPath, TrySubmitError,
    Turns, Unblocked,
};

use crate::{
    CrossBackendTransferManager, TransferOptions,
    context::is_observed,
    planning::{
        candidate::{Candidate, CandidateInfo, bit, is_explored},
        engine_queue::COUNTED_FROM,
        planner::Choice,
    },
    report_events::{self, Traced},
    strided::Rows,
};

/// What few transfers bring. Behind one reference, so that the others pay for a null pointer only.
#[derive(Clone, Copy, Default)]
pub(crate) struct Extras<'a> {
    /// The same for every attempt; `None` if nothing is traced.
    pub(crate) id: Option<TransferId>,
    /// What the bytes move after, besides conflicting work.
    pub(crate) after: &'a [Fence],
    /// The caller's queue, in the place of a leased one.
    pub(crate) queue: Option<&'a dyn Queue>,
    /// The task that submits, if its thread must not be blocked.
    pub(crate) task: Option<&'a TaskContext<'a>>,
    /// What is copied of the source and the destination, if it is not all.
    pub(crate) rows: Option<&'a Rows>,
    pub(crate) staging: Staging,
    /// Whether the calling thread submits nothing more, and waits.
    pub(crate) waits: bool,
    /// Whether it then waits for others first, which it submitted before.
    pub(crate) has_others: bool,
    /// Whether a method that it explored failed, so that the best one takes it.
    pub(crate) has_explored: bool,
    /// Methods that declined: a bit for each one's index. DirectCopy, whose queue copies through memory of its own, which was short; PeerToPeer, if memory grants the peer no access, which rows need.
    pub(crate) declined: u8,
    /// Why the last of them did, if that is the reason where no method is left.
    pub(crate) cause: Option<&'a Error>,
}

/// Whether a transfer may be staged, if pinned memory was short.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Staging {
    #[default]
    Usual,
    /// Memory was short: other methods are tried.
    Declined,
    /// No other method is left: staging is tried once more.
    LastResort,
}

impl Extras<'_> {
    /// Returns whether the first step may be left to the wait of the calling thread. Not with an id: between submission and wait nobody
    /// else's code may run, since what is left to the wait does not begin before it.
    pub(crate) fn begins_by_waiting(&self) -> bool {
        self.waits && !self.has_others && self.id.is_none()
    }

    /// Returns the methods that declined the transfer: a bit for each method's index.
    pub(crate) fn declined(&self) -> u8 {
        let staged = if self.staging == Staging::Declined { bit(TransferMethod::HostStaged) } else { 0 };
        staged | self.declined
    }
}

/// What a task brings whose thread must not be blocked.
pub(crate) struct TaskContext<'a> {
    /// Its turns in the conflicts' wait queues.
    pub(crate) turns: &'a Turns,
    /// Whether the calling thread may take its time, though not wait for work in flight.
    pub(crate) may_be_slow: bool,
    /// Why nothing was submitted.
    pub(crate) deferral: Cell<Option<Deferral>>,
}

/// Why nothing was submitted for a task.
pub(crate) enum Deferral {
    /// It is worth retrying when this completes.
    Blocked(Unblocked),
    /// It may take the calling thread long. The device is the lane.
    Slow(DeviceId),
    /// The caller's queue is another thread's.
    QueueOfAnotherThread,
}

/// Why a method submitted nothing.
pub(crate) enum NotSubmitted {
    /// For a task only.
    Deferred(Deferral),
    Failed(Error),
}

impl From<Error> for NotSubmitted {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<TrySubmitError> for NotSubmitted {
    fn from(error: TrySubmitError) -> Self {
        match error {
            TrySubmitError::WouldBlock(blocked) => Self::Deferred(Deferral::Blocked(blocked)),
            TrySubmitError::Failed(error) => Self::Failed(error),
        }
    }
}

/// What the manager returns to a task for which nothing was submitted, and which knows why.
#[cold]
pub(crate) fn would_block() -> Transfer {
    struct Ignored;

    impl RefusalHandler for Ignored {
        fn refusal_dropped(&self, _: Option<TransferId>, _: &Error) {}
    }

    let error = Error::new(ErrorKind::Busy, "the buffers are in use by earlier work; retry later");
    Transfer::refused_with(error, None, Arc::new(Ignored))
}

/// A submission, to be tried again in another way.
pub(crate) type Again<'a> = ((&'a RawBuffer, &'a RawBuffer), (&'a TransferOptions, Option<&'a Extras<'a>>));

impl CrossBackendTransferManager {
    /// Goes on after an error for which nothing was submitted: by another method, if memory that this one needs was too short, or
    /// the method was only tried. Refuses what is the caller's error.
    ///
    /// # Errors
    /// The error to return otherwise. It counts as a failure of the path.
    #[cold]
    pub(crate) fn after_failure(
        &self,
        error: Error,
        candidate: &mut Candidate,
        submission: &Submission,
        again: Again<'_>,
    ) -> Result<Transfer, Error> {
        if is_explored(submission) && !transload_core::mutant!("transfer/tried-failure-is-not-the-transfers")
        {
            candidate.charge_try(submission.bytes);
            return Ok(self.after_exploration(candidate, again));
        }
        let (method, path) = (candidate.method(), candidate.info.stats.path);
        if method == TransferMethod::PeerToPeer
            && error.kind() == ErrorKind::Unsupported
            && again.1.1.is_some_and(|extras| extras.rows.is_some())
        {
            return Ok(self.attempt_without_method(method, path, Some(&error), again));
        }
        if is_the_callers(error.kind()) {
            return Ok(self.refuse(again.1.1.and_then(|extras| extras.id), error));
        }
        let is_shortage = matches!(method, TransferMethod::DirectCopy | TransferMethod::HostStaged)
            && error.kind() == ErrorKind::OutOfMemory;
        if !is_shortage || transload_core::mutant!("transfer/shortage-declines") {
            return Err(error);
        }
        if method == TransferMethod::DirectCopy {
            return Ok(self.attempt_without_method(method, path, Some(&error), again));
        }
        let extras = again.1.1.copied().unwrap_or_default();
        if extras.staging == Staging::Usual {
            report_events::declined(extras.id, path, method);
            return Ok(self.attempt_with(Staging::Declined, again));
        }
        let bytes = self.staging_bytes();
        let text = format!("no other method is left for {path}, and staging buffers hold {bytes} bytes");
        Err(Error::caused_by(ErrorKind::OutOfMemory, text, error))
    }

    /// Goes on by the best method after one failed that was only tried.
    fn after_exploration(
        &self,
        candidate: &Candidate,
        ((src, dst), (options, extras)): Again<'_>,
    ) -> Transfer {
        let extras = Extras { has_explored: true, ..extras.copied().unwrap_or_default() };
        report_events::declined(extras.id, candidate.info.stats.path, candidate.method());
        self.attempt(src, dst, options, Some(&extras))
    }

    /// Returns the end of a transfer for which no method is left: staged after all, if it was declined before, or refused. Why a method declined is the
    /// reason.
    #[cold]
    pub(crate) fn with_no_method(&self, error: Error, again: Again<'_>) -> Transfer {
        match again.1.1 {
            Some(Extras { staging: Staging::Declined, .. }) => self.attempt_with(Staging::LastResort, again),
            Some(Extras { id, cause: Some(cause), .. }) if error.kind() == ErrorKind::Unsupported => {
                self.refuse(*id, (*cause).clone())
            }
            extras => self.refuse(extras.and_then(|extras| extras.id), error),
        }
    }

    /// Goes on by another method than one that declined, and why.
    fn attempt_without_method(
        &self,
        method: TransferMethod,
        path: TransferPath,
        cause: Option<&Error>,
        ((src, dst), (options, extras)): Again<'_>,
    ) -> Transfer {
        let extras = extras.copied().unwrap_or_default();
        report_events::declined(extras.id, path, method);
        let declined = extras.declined | bit(method);
        let extras = Extras { declined, cause: cause.or(extras.cause), ..extras };
        self.attempt(src, dst, options, Some(&extras))
    }

    fn attempt_with(&self, staging: Staging, ((src, dst), (options, extras)): Again<'_>) -> Transfer {
        let extras = Extras { staging, ..extras.copied().unwrap_or_default() };
        self.attempt(src, dst, options, Some(&extras))
    }

    /// Counts a transfer that a method submitted.
    #[inline(always)]
    pub(crate) fn accepted(
        &self,
        candidate: &mut Candidate,
        choice: &Choice,
        priority: StreamPriority,
        (end, submission, info): (&Submitted, &Submission, &CandidateInfo),
        id: Option<TransferId>,
    ) {
        candidate.warm_up(priority, submission);
        if let Some(begun) = submission.begun
            && is_observed(id)
        {
            let report = info.report(submission).with_id(id);
            let end = match end {
                Submitted::Until(fence) => Some(fence),
                _ => None,
            };
            self.context.tell(TransferEvent::Submitted { report: &report, begun, end });
        }
        if submission.bytes >= COUNTED_FROM {
            if !choice.by_kernel {
                candidate.queue(end, submission);
            }
            if choice.by_kernel || candidate.is_in_place() {
                candidate.queue_kernel(end, submission);
            }
        }
    }

    /// Creates the handle of a submitted transfer.
    #[inline(always)]
    pub(crate) fn handle_of(
        end: Submitted,
        submission: Submission,
        info: Arc<CandidateInfo>,
        id: Option<TransferId>,
    ) -> Transfer {
        match id {
            None => Transfer::submitted(end, submission, info),
            Some(id) => Traced::submitted(id, end, submission, info),
        }
    }

    /// Creates the handle of a transfer that a method failed to submit, and counts it as a failure of the path.
    #[cold]
    pub(crate) fn failed(
        &self,
        error: Error,
        submission: &Submission,
        info: &CandidateInfo,
        id: Option<TransferId>,
    ) -> Transfer {
        let mut report = info.report(submission);
        report.elapsed = report.submitting;
        report.id = id;
        info.ended(submission, &report, Err(&error));
        let refused = Transfer::refused_with(error, id, Arc::clone(&self.context) as _);
        // The list tells of its parts.
        if id.is_some_and(TransferId::is_part) { refused.with_plan(report) } else { refused }
    }
}

/// Returns whether a submission error means that the request was invalid, rather than that the driver failed.
pub(crate) fn is_the_callers(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidArgument
            | ErrorKind::OutOfRange
            | ErrorKind::Overlap
            | ErrorKind::UnknownDevice
            | ErrorKind::Unsupported
            | ErrorKind::Busy
    )
}
