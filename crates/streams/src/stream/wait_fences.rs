//! Makes a stream wait for a fence, and tells when it must not.

use transload_core::{Fence, Result};

use crate::{
    CudaStream,
    completion::{after_capture::AfterCapture, stream_end::StreamEnd, timeline::StreamTimeline},
};

impl CudaStream {
    /// Makes later work of this stream wait for the fence, on the device if possible.
    pub(crate) fn wait_fence(&self, fence: &Fence) -> Result<()> {
        if fence.is_known_complete() {
            return Ok(());
        }
        let timeline = fence.timeline().as_any();
        if let Some(other) = timeline.downcast_ref::<StreamTimeline>() {
            if std::ptr::eq(other, &raw const *self.own) {
                Ok(())
            } else {
                self.own.wait_for(other, fence.point()).map(|_| ())
            }
        } else if let Some(end) = timeline.downcast_ref::<StreamEnd>() {
            let Some(event) = end.event() else { return Ok(()) };
            // Waiters of the open batch must not wait for the other stream.
            let waited = self.own.flush_batch().and_then(|()| self.own.stream().wait_event(event));
            waited.map_err(|error| self.own.lift(error))
        } else if let Some(waited) = self.own.wait_for_external(fence) {
            waited.map(drop)
        } else {
            // Work of another backend. Its own transfer reports errors.
            let _over = fence.wait();
            Ok(())
        }
    }

    /// Returns whether the work is complete. Calls the driver, but does not end a batch to record an event.
    pub(crate) fn is_complete_by_event(fence: &Fence) -> bool {
        let stream = fence.timeline().as_any().downcast_ref::<StreamTimeline>();
        stream.is_none_or(|stream| stream.events.points.is_covered(fence.point())) && fence.is_complete()
    }

    /// Returns whether a block that waits for the fence may be reused: a buffer's users wait for any fence, a stream
    /// only for device work, and no one for the end of a capture.
    pub(crate) fn can_wait(fence: &Fence, buffer: bool) -> bool {
        let timeline = fence.timeline().as_any();
        match timeline.downcast_ref::<StreamEnd>() {
            Some(end) => !end.is_unrecorded(),
            None if buffer => !timeline.is::<AfterCapture>(),
            None => timeline.is::<StreamTimeline>(),
        }
    }
}
