//! What a driver error means for a stream's work: complete, lost, or still running.

use std::{thread, time::Duration};

use transload_core::{Error, ErrorKind, Result, events::report, mutant};
use transload_cuda_sys::{Context, DriverError};
use transload_memory::{lift, lost_elsewhere, record_loss};

use super::{stream_events::SMALL, timeline::StreamTimeline};

/// Retries without a pause.
const ATTEMPTS: u32 = 1000;
/// Pause between later retries.
const PAUSE: Duration = Duration::from_millis(1);

/// Paces retries of a call that fails without saying whether the work is complete.
#[derive(Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Yields or sleeps before the next retry. Returns the error of the last one, or that of a lost device once many have failed.
    pub(crate) fn pause(&mut self, context: &Context, error: DriverError) -> DriverError {
        if is_capture_error(&error) || self.0 < ATTEMPTS {
            self.rest();
            return error;
        }
        let error = context.judge(error);
        if !error.is_sticky() {
            self.rest();
        }
        error
    }

    /// Yields or sleeps before the next retry.
    pub(crate) fn rest(&mut self) {
        if self.0 < ATTEMPTS {
            self.0 += 1;
            thread::yield_now();
        } else {
            thread::park_timeout(PAUSE);
        }
    }
}

/// Returns whether the error is about a graph capture (`CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` to
/// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`), and so says nothing about the work.
pub(crate) fn is_capture_error(error: &DriverError) -> bool {
    matches!(error.code(), Some(900..=908))
}

impl StreamTimeline {
    /// Resolves an error of a query or a wait. After a sticky error nothing runs any more. Any other error says
    /// nothing about the work, which may still use memory: this waits for it, with retries.
    pub(crate) fn resolve_error(&self, point: u64, error: DriverError) -> Error {
        match self.resolve_wait_error(point, error.clone()) {
            Ok(()) => lift(error),
            Err(error) => error,
        }
    }

    /// Like [`resolve_error`](Self::resolve_error), but an error caused by a capture counts as success once the work
    /// is complete.
    pub(crate) fn resolve_wait_error(&self, point: u64, error: DriverError) -> Result<()> {
        if error.is_sticky() {
            return Err(self.mark_lost(error));
        }
        report::call_failed("waiting for the stream again", self.device, &error);
        // A long capture is no sign of a lost device.
        if is_capture_error(&error) {
            self.wait_for_capture_end();
        }
        self.wait_until_idle(point)?;
        if is_capture_error(&error) { Ok(()) } else { Err(lift(error)) }
    }

    /// Waits for all work of the stream, however often the wait fails, and marks a point as reached.
    ///
    /// # Errors
    /// The loss of the device.
    fn wait_until_idle(&self, point: u64) -> Result<()> {
        let mut backoff = Backoff::default();
        while let Err(error) = self.synchronize_driver() {
            let error = if error.is_sticky() { error } else { backoff.pause(self.context(), error) };
            if error.is_sticky() {
                return Err(self.mark_lost(error));
            }
            if is_capture_error(&error) {
                self.wait_for_capture_end();
            }
        }
        self.advance(point);
        Ok(())
    }

    /// Converts the error of a call on this stream that enqueued nothing. A sticky one tells that a device is lost: this one, if the
    /// stream says so itself. Else it is another one, whose memory or event the call names.
    #[cold]
    pub(crate) fn lift(&self, error: DriverError) -> Error {
        let error = self.context().judge_unknown(error);
        if !error.is_sticky() || !self.may_query() || mutant!("streams/refused-call-tells-loss") {
            return lift(error);
        }
        if self.is_lost_by_query() || mutant!("streams/loss-of-another-is-not-ours") {
            self.mark_lost(error)
        } else {
            lost_elsewhere(self.context(), error)
        }
    }

    /// A query would end a capture.
    fn may_query(&self) -> bool {
        self.is_usable_here() && !self.is_captured()
    }

    /// Returns whether the stream itself says that its device is lost.
    fn is_lost_by_query(&self) -> bool {
        self.stream().is_idle().is_err_and(|error| self.context().judge(error).is_sticky())
    }

    /// Like [`resolve_error`](Self::resolve_error), for work that was enqueued without an event.
    pub(crate) fn resolve_unrecorded_error(&self, error: DriverError) -> Error {
        self.resolve_error(self.events.points.issued(), error)
    }

    /// The same, for an operation of which the driver took a part. A sticky error of another device's loss, whose memory a later part names,
    /// leaves the stream's work running: this waits for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn resolve_part_error(&self, error: DriverError) -> Error {
        let is_anothers = error.is_sticky() && self.may_query() && !self.is_lost_by_query();
        let resolved = if is_anothers && !mutant!("streams/part-loss-of-another") {
            match self.wait_until_idle(self.events.points.issued()) {
                Ok(()) => lost_elsewhere(self.context(), error),
                Err(lost) => lost,
            }
        } else {
            self.resolve_unrecorded_error(error)
        };
        resolved.of_part()
    }

    /// Like [`resolve_error`](Self::resolve_error), for a query; it is repeated later if a capture caused the error.
    /// An event recorded into a capture never completes, so this queries the stream once the capture is over.
    pub(crate) fn resolve_query_error(&self, point: u64, error: DriverError) -> Result<bool> {
        if !is_capture_error(&error) {
            return Err(self.resolve_error(point, error));
        }
        if self.query_captured() {
            return Ok(false);
        }
        let idle = if self.is_usable_here() {
            self.stream().is_idle()
        } else {
            self.synchronize_driver().map(|()| true)
        };
        match idle {
            Ok(true) => {
                self.advance(point);
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) => match self.context().judge(error) {
                error if error.is_sticky() => Err(self.resolve_error(point, error)),
                // Repeated later: this may be the thread that serves all streams.
                _ => Ok(false),
            },
        }
    }

    /// Marks the stream as lost: nothing of it runs any more, so every point counts as reached and memory is
    /// reclaimed.
    fn mark_lost(&self, error: DriverError) -> Error {
        let error = self.broken.get_or_init(|| self.describe_loss(error)).clone();
        record_loss(self.context(), &error);
        self.events.points.reach_all();
        error
    }

    /// CUDA reports an asynchronous error at a later call without naming the operation, so name what was in flight.
    fn describe_loss(&self, error: DriverError) -> Error {
        let (over, oldest) = {
            let pending = self.events.pending.lock();
            (pending.completed(), pending.oldest().unwrap_or(SMALL))
        };
        let lost = self.events.points.issued().saturating_sub(over);
        let stream = format!("stream {} of {}", self.id, self.device);
        let what = match lost {
            0 => format!("{stream} had nothing in flight when its context was lost"),
            1 => format!("{stream} lost the operation in flight, a {oldest}"),
            _ => format!("{stream} lost {lost} operations in flight, the oldest of them a {oldest}"),
        };
        let lifted = lift(error.clone());
        let text = match lifted.kind() {
            ErrorKind::DeviceLost => {
                format!("{what}; the CUDA context is unusable from here on; only a new process recovers it")
            }
            _ => what,
        };
        Error::caused_by(lifted.kind(), text, error)
    }
}
