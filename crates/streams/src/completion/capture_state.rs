//! Streams being captured. Enqueued work does not run, and a query or a wait invalidates the capture.
//!
//! Only streams with an exposed handle, or that waited for a user's event, can be captured; others skip the check.
//! Operations with a fence are refused on a captured stream, since no event could complete it.

use std::{sync::atomic::Ordering, thread};

use transload_core::{Error, ErrorKind, Result};
use transload_cuda_sys::{AsStream, Stream, ffi};

use super::timeline::StreamTimeline;

/// Returns whether a stream that this thread can name is being captured. Does not affect the capture.
pub(crate) fn is_captured(stream: &Stream) -> bool {
    // A default stream's handle names a stream of the current context.
    let Ok(_bound) = stream.context().enter() else { return false };
    let mut status = 0;
    // SAFETY: the stream is valid, the out pointer for the call.
    match unsafe { ffi::cuStreamIsCapturing(stream.as_raw(), &mut status) } {
        0 => status != 0,
        // The legacy stream cannot be queried while a stream is captured that it would wait for (906).
        code => matches!(code, 900..=908),
    }
}

impl StreamTimeline {
    /// Queries whether the stream is being captured. Does not affect the capture.
    pub(crate) fn query_captured(&self) -> bool {
        self.is_usable_here() && is_captured(self.stream())
    }

    /// Records that the stream may have become part of a capture.
    pub(crate) fn note_possible_capture(&self) {
        self.joins.store(true, Ordering::Relaxed);
    }

    /// Like [`query_captured`](Self::query_captured), but calls the driver only if the stream can be captured.
    #[inline]
    pub(crate) fn is_captured(&self) -> bool {
        (self.events.points.is_shared() || self.joins.load(Ordering::Relaxed)) && self.query_captured()
    }

    /// Like [`check_usable`](Self::check_usable), but also fails during a capture.
    #[inline]
    pub(crate) fn check_not_captured(&self) -> Result<()> {
        self.check_usable()?;
        if self.is_captured() { Err(self.captured()) } else { Ok(()) }
    }

    #[cold]
    fn captured(&self) -> Error {
        let text = format!(
            "stream {} of {} is being captured into a graph: its completion cannot be observed until the capture ends; \
             enqueue into the capture through the raw handle, or record operations as a graph",
            self.id, self.device
        );
        Error::new(ErrorKind::Busy, text)
    }

    /// Blocks until the capture is over.
    #[cold]
    pub(crate) fn wait_for_capture_end(&self) {
        while self.query_captured() {
            thread::yield_now();
        }
    }
}
