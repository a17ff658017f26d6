//! Putting a stream behind a fence, and knowing when it must be left alone.

use transload_core::{Fence, Result};
use transload_memory::lift;

use crate::{
    CudaStream,
    completion::{after_capture::AfterCapture, stream_end::StreamEnd, timeline::StreamTimeline},
};

impl CudaStream {
    /// Makes later work of this stream come after the fence, on the device where that is possible.
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
            end.event().map_or(Ok(()), |event| self.own.stream().wait_event(event).map_err(lift))
        } else {
            // The host's own work. That it failed is told to who awaits it.
            let _over = fence.wait();
            Ok(())
        }
    }

    /// Whether the work is over; asks the driver, but records no event for that: a run of small copies goes on.
    pub(crate) fn is_complete_by_event(fence: &Fence) -> bool {
        let stream = fence.timeline().as_any().downcast_ref::<StreamTimeline>();
        stream.is_none_or(|stream| stream.events.points.is_covered(fence.point())) && fence.is_complete()
    }

    /// Whether a block may be given out that is behind the fence: a buffer's users wait for any by themselves, a stream only
    /// for the device's, and nobody for the end of someone's capture.
    pub(crate) fn can_wait(fence: &Fence, buffer: bool) -> bool {
        let timeline = fence.timeline().as_any();
        match timeline.downcast_ref::<StreamEnd>() {
            Some(end) => !end.is_unrecorded(),
            None if buffer => !timeline.is::<AfterCapture>(),
            None => timeline.is::<StreamTimeline>(),
        }
    }
}
