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

/// Attempts at something that fails without saying whether work is over.
#[derive(Default)]
pub(crate) struct Attempts(u32);

impl Attempts {
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
pub(crate) fn is_of_a_capture(error: &DriverError) -> bool {
    matches!(error.code(), Some(900..=908))
}

impl StreamTimeline {
    /// What an error of a question or a wait means. A broken context runs nothing any more. Any other error says nothing
    /// about the work, which may still run and use memory: it is waited for, however often that takes asking.
    pub(crate) fn settle(&self, point: u64, error: DriverError) -> Error {
        match self.settle_wait(point, error.clone()) {
            Ok(()) => lift(error),
            Err(error) => error,
        }
    }

    /// As [`settle`](Self::settle), for a wait: where a capture stood in its way, it has ended well once that is over.
    pub(crate) fn settle_wait(&self, point: u64, error: DriverError) -> Result<()> {
        let mut latest = error.clone();
        let mut attempts = Attempts::default();
        loop {
            if latest.is_sticky() {
                return Err(self.give_up(latest));
            }
            // However long someone's capture takes: it is no silence of the device.
            if is_of_a_capture(&latest) {
                self.wait_out_a_capture();
            }
            match self.synchronize_driver() {
                Ok(()) => {
                    self.advance(point);
                    return if is_of_a_capture(&error) { Ok(()) } else { Err(lift(error)) };
                }
                Err(again) => latest = again,
            }
            attempts.pause();
        }
    }

    /// As [`settle`](Self::settle), for work that was enqueued without an event behind it.
    pub(crate) fn settle_unmarked(&self, error: DriverError) -> Error {
        self.settle(self.ends.points.given(), error)
    }

    /// As [`settle`](Self::settle) for a question, which is asked again later where someone's capture stood in its way. An
    /// event that was recorded into a capture never tells anything; the stream itself does, once the capture is over.
    pub(crate) fn settle_question(&self, point: u64, error: DriverError) -> Result<bool> {
        if !is_of_a_capture(&error) {
            return Err(self.settle(point, error));
        }
        if self.is_captured() {
            return Ok(false);
        }
        let idle =
            if self.is_here() { self.stream().is_idle() } else { self.synchronize_driver().map(|()| true) };
        match idle {
            Ok(true) => {
                self.advance(point);
                Ok(true)
            }
            Ok(false) => Ok(false),
            // Asked again later: this may be the thread that serves all streams.
            Err(error) if !error.is_sticky() => Ok(false),
            Err(error) => Err(self.settle(point, error)),
        }
    }

    /// After an error nothing of the stream runs any more: every point counts as reached, so that memory is reclaimed.
    fn give_up(&self, error: DriverError) -> Error {
        let error = self.broken.get_or_init(|| self.name_what_was_lost(error)).clone();
        record_loss(self.context(), &error);
        self.ends.points.give_up();
        error
    }

    /// The driver tells an error of work to whoever asks next, and not whose it is. What it hit is what was in flight.
    fn name_what_was_lost(&self, error: DriverError) -> Error {
        let (over, oldest) = {
            let line = self.ends.line.lock();
            (line.over(), line.oldest().unwrap_or(SMALL))
        };
        let lost = self.ends.points.given().saturating_sub(over);
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
