//! What an error means for a stream's work: over and well, over and lost, or still running.

use std::{thread, time::Duration};

use transload_core::{Error, ErrorKind, Result};
use transload_cuda_sys::DriverError;
use transload_memory::{lift, record_loss};

use super::{stream_events::SMALL, timeline::StreamTimeline};

/// How often a stream that answers nothing but errors is asked without a pause.
const ATTEMPTS: u32 = 1000;
/// How long the pauses are from then on.
const PAUSE: Duration = Duration::from_millis(1);

/// Backoff at something that fails without saying whether work is over.
#[derive(Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Lets some time pass before the next one.
    pub(crate) fn pause(&mut self) {
        if self.0 < ATTEMPTS {
            self.0 += 1;
            thread::yield_now();
        } else {
            thread::park_timeout(PAUSE);
        }
    }
}

/// Whether the error is about a graph capture (`CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` to
/// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`), and so says nothing about the work.
pub(crate) fn is_capture_error(error: &DriverError) -> bool {
    matches!(error.code(), Some(900..=908))
}

impl StreamTimeline {
    /// What an error of a question or a wait means. A broken context runs nothing any more. Any other error says nothing
    /// about the work, which may still run and use memory: it is waited for, however often that takes asking.
    pub(crate) fn resolve_error(&self, point: u64, error: DriverError) -> Error {
        match self.resolve_wait_error(point, error.clone()) {
            Ok(()) => lift(error),
            Err(error) => error,
        }
    }

    /// As [`resolve_error`](Self::resolve_error), for a wait: where a capture stood in its way, it has ended well once that is over.
    pub(crate) fn resolve_wait_error(&self, point: u64, error: DriverError) -> Result<()> {
        let mut latest = error.clone();
        let mut backoff = Backoff::default();
        loop {
            if latest.is_sticky() {
                return Err(self.mark_lost(latest));
            }
            // However long someone's capture takes: it is no silence of the device.
            if is_capture_error(&latest) {
                self.wait_for_capture_end();
            }
            match self.synchronize_driver() {
                Ok(()) => {
                    self.advance(point);
                    return if is_capture_error(&error) { Ok(()) } else { Err(lift(error)) };
                }
                Err(again) => latest = again,
            }
            backoff.pause();
        }
    }

    /// As [`resolve_error`](Self::resolve_error), for work that was enqueued without an event behind it.
    pub(crate) fn resolve_unrecorded_error(&self, error: DriverError) -> Error {
        self.resolve_error(self.events.points.issued(), error)
    }

    /// As [`resolve_error`](Self::resolve_error) for a question, which is asked again later where someone's capture stood in its way. An
    /// event that was recorded into a capture never tells anything; the stream itself does, once the capture is over.
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
            // Asked again later: this may be the thread that serves all streams.
            Err(error) if !error.is_sticky() => Ok(false),
            Err(error) => Err(self.resolve_error(point, error)),
        }
    }

    /// After an error nothing of the stream runs any more: every point counts as reached, so that memory is reclaimed.
    fn mark_lost(&self, error: DriverError) -> Error {
        let error = self.broken.get_or_init(|| self.describe_loss(error)).clone();
        record_loss(self.context(), &error);
        self.events.points.reach_all();
        error
    }

    /// The driver tells an error of work to whoever asks next, and not whose it is. What it hit is what was in flight.
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
