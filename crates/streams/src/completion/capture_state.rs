//! A stream that someone captures into a graph: what is enqueued does not run, and whoever asks or waits breaks the capture.
//!
//! Only a stream whose handle was given out can be captured, and one that was put behind an event of someone's: the others pay
//! nothing for the question. On a captured stream operations with a fence are refused, since no event could tell their end.

use std::{sync::atomic::Ordering, thread};

use transload_core::{Error, ErrorKind, Result};
use transload_cuda_sys::{AsStream, Stream, ffi};

use super::timeline::StreamTimeline;

/// Whether someone captures a stream just now that this thread can name. Does not disturb the capture.
pub(crate) fn is_captured(stream: &Stream) -> bool {
    // The handle of a default stream means one of the current context.
    let Ok(_bound) = stream.context().enter() else { return false };
    let mut status = 0;
    // SAFETY: the stream is valid, the out pointer for the call.
    match unsafe { ffi::cuStreamIsCapturing(stream.as_raw(), &mut status) } {
        0 => status != 0,
        // The legacy stream cannot be asked while a stream is captured that it would wait for (906).
        code => matches!(code, 900..=908),
    }
}

impl StreamTimeline {
    /// Whether someone captures the stream just now. Does not disturb the capture.
    pub(crate) fn query_captured(&self) -> bool {
        self.is_usable_here() && is_captured(self.stream())
    }

    /// From here on someone may have made the stream part of a capture.
    pub(crate) fn note_possible_capture(&self) {
        self.joins.store(true, Ordering::Relaxed);
    }

    /// As [`is_captured`](Self::is_captured), without the driver where that cannot be.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        (self.events.points.is_shared() || self.joins.load(Ordering::Relaxed)) && self.query_captured()
    }

    /// As [`check_usable`](Self::check_usable), and whether nobody captures the stream.
    #[inline]
    pub(crate) fn check_not_captured(&self) -> Result<()> {
        self.check_usable()?;
        if self.is_captured() { Err(self.captured()) } else { Ok(()) }
    }

    #[cold]
    fn captured(&self) -> Error {
        let text = format!(
            "stream {} of {} is being captured into a graph: until the capture ends nothing tells when its work is over; \
             enqueue into the capture through the raw handle, or record operations as a graph",
            self.id, self.device
        );
        Error::new(ErrorKind::Busy, text)
    }

    /// Blocks until nobody captures the stream.
    #[cold]
    pub(crate) fn wait_for_capture_end(&self) {
        while self.query_captured() {
            thread::yield_now();
        }
    }
}
