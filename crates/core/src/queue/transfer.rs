//! A submitted movement of bytes: runs by itself, is awaited or waited for, and may be dropped at any time.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use crate::{CostBasis, Error, Fence, Place, Result, TransferMethod, TransferPath, TransferReport};

/// What is noted of a transfer when it is submitted: of this and what its [`CompletionHandler`] knows its report is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Submission {
    /// How many bytes move.
    pub bytes: u64,
    /// See [`TransferReport::predicted`].
    pub predicted: Duration,
    /// See [`TransferReport::queued`].
    pub queued: u64,
    /// See [`TransferReport::chunks`].
    pub chunks: u32,
    /// For the completion's own use.
    pub tag: u32,
    /// When the submission began, where its times are wanted; else no clock is read and no timeline is asked for a duration.
    pub begun: Option<Instant>,
    /// See [`TransferReport::submitting`]; of no meaning without `begun`.
    pub submitting: Duration,
}

/// Makes a transfer's report, and is told once about its end.
pub trait CompletionHandler: Send + Sync + 'static {
    /// Returns the report of a transfer that is under way.
    fn report(&self, submission: &Submission) -> TransferReport;

    /// Its bytes are in place, or it failed.
    fn ended(&self, report: &TransferReport, outcome: Result<(), &Error>);

    /// Called when the handle is dropped before the end was observed. The work goes on; `fence` tells its end, and with
    /// which error, to callers that keep it and poll it later.
    fn abandoned(&self, submission: &Submission, fence: Fence);
}

/// Is told about refusals that nobody saw.
pub trait RefusalHandler: Send + Sync + 'static {
    /// Called when a transfer that was [refused](Transfer::refused_with) is dropped before its error was taken, by awaiting
    /// it, or seen by [`Transfer::refusal`].
    fn refusal_dropped(&self, error: &Error);
}

/// A transfer under way. It was enqueued when this was made: two transfers run side by side whatever the order in which
/// they are awaited. Dropping it neither cancels the transfer nor waits for it; the memory stays owned until it is done.
///
/// Works with any async runtime, or none: [`wait`](Self::wait) blocks instead.
#[must_use = "the outcome of a transfer is only known to who awaits it"]
pub struct Transfer {
    state: State,
}

// Boxing the larger variant would allocate on every transfer. With a tag of a whole word: a narrower one shares a word with
// what a variant begins with, and then variants are copied in pieces that do not fit each other, which stalls a processor.
#[allow(clippy::large_enum_variant)]
#[repr(u64)]
enum State {
    Direct(Direct),
    Running(Running),
    /// Refused, until the error is taken.
    Refused(Refused),
    /// The outcome was taken.
    Taken,
}

/// What is known of a transfer that a user enqueued: little, so that making and dropping it takes no time. Its report is
/// made when somebody wants it.
struct Direct {
    fence: Fence,
    method: TransferMethod,
    from: Place,
    to: Place,
    bytes: u64,
}

struct Refused {
    error: Error,
    /// Called where the error is neither taken nor looked at.
    handler: Option<Arc<dyn RefusalHandler>>,
    seen: AtomicBool,
}

struct Running {
    end: Submitted,
    submission: Submission,
    completion: Arc<dyn CompletionHandler>,
}

/// How work was submitted.
#[derive(Debug)]
pub enum Submitted {
    /// It is complete when this fence is.
    Until(Fence),
    /// It is complete, after so long if it was measured.
    Complete(Option<Duration>),
}

impl Transfer {
    /// Returns a transfer that was submitted. `completion` is told when it is awaited, waited for or dropped.
    #[inline]
    pub fn submitted(end: Submitted, submission: Submission, completion: Arc<dyn CompletionHandler>) -> Self {
        Self { state: State::Running(Running { end, submission, completion }) }
    }

    /// A transfer of `bytes` by one operation that a user enqueued on the queue of the fence's timeline. No clock is read
    /// for it: its report's [`submitting`](TransferReport::submitting) and [`elapsed`](TransferReport::elapsed) are `None`.
    #[inline]
    pub fn direct(fence: Fence, method: TransferMethod, from: Place, to: Place, bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self { state: State::Direct(Direct { fence, method, from, to, bytes }) }
    }

    /// A transfer that was not enqueued.
    pub fn refused(error: Error) -> Self {
        Self { state: State::Refused(Refused { error, handler: None, seen: AtomicBool::new(false) }) }
    }

    /// Like [`refused`](Self::refused), but `handler` gets the error if the transfer is dropped before it was seen.
    pub fn refused_with(error: Error, handler: Arc<dyn RefusalHandler>) -> Self {
        Self {
            state: State::Refused(Refused { error, handler: Some(handler), seen: AtomicBool::new(false) }),
        }
    }

    /// The error with which the transfer was refused, if it was never enqueued.
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

    /// The fence of the whole transfer, for other queues to wait for. `None` where nothing is left to wait for: it was refused,
    /// its outcome was taken, or it was complete when its submission returned, as small copies from host to host are.
    #[must_use]
    pub fn fence(&self) -> Option<&Fence> {
        match &self.state {
            State::Direct(direct) => Some(&direct.fence),
            State::Running(Running { end: Submitted::Until(fence), .. }) => Some(fence),
            State::Running(_) | State::Refused(_) | State::Taken => None,
        }
    }

    /// Whether it is over, for better or worse; never blocks.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.fence().is_none_or(Fence::is_complete)
    }

    /// Blocks the calling thread until the bytes are in place.
    ///
    /// # Errors
    /// The error with which the transfer was refused or failed.
    pub fn wait(mut self) -> Result<TransferReport> {
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Refused(refused) => Err(refused.error),
            State::Taken => Err(taken()),
            State::Direct(direct) => {
                let outcome = direct.fence.wait();
                direct.end(outcome)
            }
            State::Running(running) => {
                let outcome = if let Submitted::Until(fence) = &running.end { fence.wait() } else { Ok(()) };
                running.end(outcome)
            }
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
    #[inline(always)]
    fn end(self, outcome: Result<()>) -> Result<TransferReport> {
        let mut report = self.completion.report(&self.submission);
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
        self.completion.ended(&report, outcome.as_ref().copied());
        outcome.map(|()| report)
    }
}

impl Future for Transfer {
    type Output = Result<TransferReport>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &self.state {
            State::Direct(Direct { fence, .. })
            | State::Running(Running { end: Submitted::Until(fence), .. }) => {
                match fence.poll_done(context) {
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => return Poll::Pending,
                }
            }
            State::Running(_) | State::Refused(_) | State::Taken => Ok(()),
        };
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Refused(refused) => Poll::Ready(Err(refused.error)),
            State::Taken => Poll::Ready(Err(taken())),
            State::Direct(direct) => Poll::Ready(direct.end(outcome)),
            State::Running(running) => Poll::Ready(running.end(outcome)),
        }
    }
}

fn taken() -> Error {
    Error::new(crate::ErrorKind::InvalidArgument, "this transfer's outcome was already taken")
}

impl Drop for Transfer {
    #[inline]
    fn drop(&mut self) {
        if matches!(self.state, State::Direct(_) | State::Taken) {
            return;
        }
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Running(Running { completion, submission, end: Submitted::Until(fence) }) => {
                completion.abandoned(&submission, fence);
            }
            State::Running(complete) => drop(complete.end(Ok(()))),
            State::Refused(Refused { handler: Some(handler), error, seen })
                if !seen.load(Ordering::Relaxed) =>
            {
                handler.refusal_dropped(&error);
            }
            _ => {}
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
