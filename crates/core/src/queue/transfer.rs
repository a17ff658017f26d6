//! A submitted movement of bytes: runs on its own, is awaited or waited for, and may be dropped at any time.

use std::{
    fmt,
    future::Future,
    mem::ManuallyDrop,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use crate::{
    CostBasis, Error, Fence, Place, Result, TransferId, TransferMethod, TransferPath, TransferReport,
    events::report, queue::unobserved,
};

/// What is recorded of a transfer at submission. Its [`CompletionHandler`] makes the report from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Submission {
    /// Bytes to move.
    pub bytes: u64,
    /// See [`TransferReport::predicted`].
    pub predicted: Duration,
    /// See [`TransferReport::queued`].
    pub queued: u64,
    /// See [`TransferReport::chunks`].
    pub chunks: u32,
    /// For the completion handler's own use.
    pub tag: u32,
    /// When the submission began, if its times are wanted; otherwise no clock is read and no timeline is
    /// queried for a duration.
    pub begun: Option<Instant>,
    /// See [`TransferReport::submitting`]; meaningless without `begun`.
    pub submitting: Duration,
}

/// Makes a transfer's report, and is called once at its end.
pub trait CompletionHandler: Send + Sync + 'static {
    /// Returns the report of a transfer in progress.
    fn report(&self, submission: &Submission) -> TransferReport;

    /// Called when the transfer is complete or has failed, with its report.
    fn ended(&self, submission: &Submission, report: &TransferReport, outcome: Result<(), &Error>);

    /// Called when the handle is dropped before the end was observed. The work goes on; poll `fence` later
    /// for its end and its error.
    fn abandoned(&self, submission: &Submission, fence: Fence);
}

/// Receives errors of refused transfers that no caller saw.
pub trait RefusalHandler: Send + Sync + 'static {
    /// Called when a [refused](Transfer::refused_with) transfer is dropped before its error was taken by
    /// awaiting it, or seen by [`Transfer::refusal`].
    fn refusal_dropped(&self, id: Option<TransferId>, error: &Error);
}

/// A transfer in progress. It was enqueued when this was created: two transfers run concurrently, in whatever
/// order they are awaited. Dropping it neither cancels the transfer nor waits for it; the memory stays alive
/// until it is complete.
///
/// Works with any async runtime, or none: [`wait`](Self::wait) blocks instead.
#[must_use = "await the transfer to learn its outcome"]
pub struct Transfer {
    state: State,
}

// Boxing the larger variant would allocate for every transfer. A word-sized tag: a narrower one shares a word
// with the payload and causes store-forwarding stalls.
#[allow(clippy::large_enum_variant)]
#[repr(u64)]
enum State {
    /// Dropped by `Transfer` itself, after the one check of its sources.
    Direct(ManuallyDrop<Direct>),
    Running(Running),
    /// Refused; the error is not taken yet.
    Refused(Refused),
    /// The outcome was taken.
    Taken,
}

/// A transfer enqueued by the user. Small, so that creating and dropping it is cheap; its report is made on
/// demand.
struct Direct {
    fence: Fence,
    method: TransferMethod,
    from: Place,
    to: Place,
    bytes: u64,
}

struct Refused {
    error: Error,
    id: Option<TransferId>,
    /// Called if the error is dropped unseen.
    handler: Option<Arc<dyn RefusalHandler>>,
    seen: AtomicBool,
    planned: Option<Box<TransferReport>>,
}

struct Running {
    end: Submitted,
    submission: Submission,
    completion: Arc<dyn CompletionHandler>,
}

/// The end of submitted work.
#[derive(Debug)]
pub enum Submitted {
    /// Complete when this fence is.
    Until(Fence),
    /// Complete; with the measured duration, if any.
    Complete(Option<Duration>),
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum TransferState {
    /// Accepted, but not yet enqueued. No transfer is in this state at present.
    Pending,
    /// Enqueued and not complete.
    Enqueued,
    /// Complete, with the bytes in place or with an error: awaiting it tells.
    Complete,
    /// Refused: nothing was enqueued.
    Refused,
}

impl Transfer {
    /// Creates a submitted transfer. `completion` is called when it is awaited, waited for or dropped.
    #[inline]
    pub fn submitted(end: Submitted, submission: Submission, completion: Arc<dyn CompletionHandler>) -> Self {
        Self { state: State::Running(Running { end, submission, completion }) }
    }

    /// Creates a transfer of `bytes` by one operation that the user enqueued on the fence's queue. No clock
    /// is read: its report's [`submitting`](TransferReport::submitting) and
    /// [`elapsed`](TransferReport::elapsed) are `None`. If it is dropped, and its work fails because bytes that it read
    /// were invalid, that is reported as [`FAILURE_UNOBSERVED`](crate::events::FAILURE_UNOBSERVED). Other failures are
    /// not, so its timeline's work must fail only with the device; else use [`submitted`](Self::submitted).
    #[inline]
    pub fn direct(fence: Fence, method: TransferMethod, from: Place, to: Place, bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self { state: State::Direct(ManuallyDrop::new(Direct { fence, method, from, to, bytes })) }
    }

    /// Creates a transfer that was not enqueued. Reports [`TRANSFER_REFUSED`](crate::events::TRANSFER_REFUSED), and
    /// [`FAILURE_UNOBSERVED`](crate::events::FAILURE_UNOBSERVED) if it is dropped before its error was seen.
    #[cold]
    pub fn refused(error: Error) -> Self {
        report::transfer_refused(&error);
        Self {
            state: State::Refused(Refused {
                error,
                id: None,
                handler: None,
                seen: AtomicBool::new(false),
                planned: None,
            }),
        }
    }

    /// Like [`refused`](Self::refused), but reports nothing: `handler` gets the error if the transfer is dropped
    /// before it was seen.
    pub fn refused_with(error: Error, id: Option<TransferId>, handler: Arc<dyn RefusalHandler>) -> Self {
        let (handler, seen) = (Some(handler), AtomicBool::new(false));
        Self { state: State::Refused(Refused { error, id, handler, seen, planned: None }) }
    }

    /// Adds what was [planned](Self::planned) to a transfer that was refused.
    pub fn with_plan(mut self, report: TransferReport) -> Self {
        if let State::Refused(refused) = &mut self.state {
            refused.planned = Some(Box::new(report));
        }
        self
    }

    /// Returns the error with which the transfer was refused, if it was never enqueued.
    #[must_use]
    pub fn refusal(&self) -> Option<&Error> {
        match &self.state {
            State::Refused(refused) => {
                refused.seen.store(true, Ordering::Relaxed);
                Some(&refused.error)
            }
            _ => None,
        }
    }

    /// Returns the report of a transfer that was submitted, without times, or that was [to be](Self::with_plan); `None` if it was refused before that
    /// was known, or its outcome was taken.
    #[must_use]
    pub fn planned(&self) -> Option<TransferReport> {
        match &self.state {
            State::Direct(direct) => Some(direct.report()),
            State::Running(Running { submission, completion, .. }) => Some(completion.report(submission)),
            State::Refused(refused) => refused.planned.as_deref().cloned(),
            State::Taken => None,
        }
    }

    /// Returns the fence of the whole transfer, for other queues to wait for. `None` if there is nothing to
    /// wait for: it was refused, its outcome was taken, or it was complete when its submission returned, like
    /// small copies from host to host. A wait for the fence is not one for the transfer: if that
    /// failed and is dropped, its error is reported as [unobserved](crate::events::FAILURE_UNOBSERVED).
    #[must_use]
    pub fn fence(&self) -> Option<&Fence> {
        match &self.state {
            State::Direct(direct) => Some(&direct.fence),
            State::Running(Running { end: Submitted::Until(fence), .. }) => Some(fence),
            State::Running(_) | State::Refused(_) | State::Taken => None,
        }
    }

    /// Returns how far it is. Polls the device once if it is enqueued; never blocks.
    #[must_use]
    pub fn state(&self) -> TransferState {
        match &self.state {
            State::Refused(_) => TransferState::Refused,
            _ if self.is_complete() => TransferState::Complete,
            _ => TransferState::Enqueued,
        }
    }

    /// Waits until the transfer is enqueued, and returns its fence: for other queues to wait for, and for interop with a driver's
    /// events. `None` means that nothing is left to wait for. Every transfer is enqueued when it is made, so at present this is
    /// ready at once.
    ///
    /// # Errors
    /// The error with which the transfer was refused.
    pub async fn enqueued(&self) -> Result<Option<Fence>> {
        match self.refusal() {
            Some(error) => Err(error.clone()),
            None => Ok(self.fence().cloned()),
        }
    }

    /// Returns whether it is complete, successfully or not; never blocks.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.fence().is_none_or(Fence::is_complete)
    }

    /// Blocks the calling thread until the transfer is complete.
    ///
    /// # Errors
    /// The error with which the transfer was refused or failed.
    pub fn wait(self) -> Result<TransferReport> {
        // Nothing is left to drop once the state is taken.
        let mut transfer = ManuallyDrop::new(self);
        match std::mem::replace(&mut transfer.state, State::Taken) {
            State::Refused(refused) => Err(refused.error),
            State::Taken => Err(taken()),
            State::Direct(direct) => {
                let outcome = direct.fence.wait();
                ManuallyDrop::into_inner(direct).end(outcome)
            }
            State::Running(running) => running.end(|end| match end {
                Submitted::Until(fence) => fence.wait(),
                Submitted::Complete(_) => Ok(()),
            }),
        }
    }
}

impl Direct {
    fn report(&self) -> TransferReport {
        let lane = self.fence.timeline().device();
        let path = TransferPath::new(self.from, self.to);
        TransferReport {
            basis: CostBasis::User,
            simulated: self.fence.timeline().is_simulated(),
            ..TransferReport::planned(path, self.method, lane, self.bytes)
        }
    }

    fn end(self, outcome: Result<()>) -> Result<TransferReport> {
        outcome?;
        let moving = self.fence.timeline().take_duration(self.fence.point())?;
        Ok(TransferReport { moving, ..self.report() })
    }
}

impl Running {
    /// Makes the report before `wait`, so that the caller does not wait for that after the end of the work.
    #[inline(always)]
    fn end(self, wait: impl FnOnce(&Submitted) -> Result<()>) -> Result<TransferReport> {
        let mut report = self.completion.report(&self.submission);
        let outcome = wait(&self.end);
        report.elapsed = self.submission.begun.map(|begun| begun.elapsed());
        let outcome = outcome.and_then(|()| {
            report.moving = match &self.end {
                Submitted::Until(fence) if self.submission.begun.is_some() => {
                    fence.timeline().take_duration(fence.point())?
                }
                Submitted::Until(_) => None,
                Submitted::Complete(moving) => *moving,
            };
            Ok(())
        });
        self.completion.ended(&self.submission, &report, outcome.as_ref().copied());
        outcome.map(|()| report)
    }
}

impl Future for Transfer {
    type Output = Result<TransferReport>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match self.fence().map(|fence| fence.poll_done(context)) {
            Some(Poll::Ready(outcome)) => outcome,
            Some(Poll::Pending) => return Poll::Pending,
            None => Ok(()),
        };
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Refused(refused) => Poll::Ready(Err(refused.error)),
            State::Taken => Poll::Ready(Err(taken())),
            State::Direct(direct) => Poll::Ready(ManuallyDrop::into_inner(direct).end(outcome)),
            State::Running(running) => Poll::Ready(running.end(|_| outcome)),
        }
    }
}

fn taken() -> Error {
    Error::new(crate::ErrorKind::InvalidArgument, "this transfer's outcome was already taken")
}

impl Drop for Transfer {
    #[inline]
    fn drop(&mut self) {
        match &mut self.state {
            State::Direct(direct) => {
                if direct.fence.sources().is_some() {
                    unobserved::report_failure(&direct.fence);
                }
                // SAFETY: this is its only drop, and nothing uses the transfer afterwards.
                unsafe { ManuallyDrop::drop(direct) };
            }
            State::Taken => {}
            _ => self.drop_unobserved(),
        }
    }
}

impl Transfer {
    fn drop_unobserved(&mut self) {
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Running(Running { completion, submission, end: Submitted::Until(fence) }) => {
                completion.abandoned(&submission, fence);
            }
            State::Running(complete) => drop(complete.end(|_| Ok(()))),
            State::Refused(Refused { handler, error, id, seen, .. }) if !seen.load(Ordering::Relaxed) => {
                match handler {
                    Some(handler) => handler.refusal_dropped(id, &error),
                    None => report::failure_unobserved(&error),
                }
            }
            State::Refused(_) | State::Direct(_) | State::Taken => {}
        }
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            State::Refused(refused) => write!(f, "Transfer(refused: {})", refused.error),
            State::Direct(direct) => write!(f, "Transfer({}, {:?})", direct.report(), direct.fence),
            State::Running(Running { submission, completion, .. }) => {
                write!(f, "Transfer({}, {:?})", completion.report(submission), self.fence())
            }
            State::Taken => f.write_str("Transfer(taken)"),
        }
    }
}
