//! Putting a stream behind a fence, and knowing when it must be left alone.

use transload_core::{Fence, Result};
use transload_cuda_sys::{RelaxedCapture, check, ffi};
use transload_memory::lift;

use super::ending::EndOfStream;
use crate::{CudaStream, timeline::StreamTimeline};

impl CudaStream {
    /// Makes later work of this stream come after the fence, on the device where that is possible.
    pub(super) fn come_after(&self, fence: &Fence) -> Result<()> {
        if fence.is_known_done() {
            return Ok(());
        }
        let timeline = fence.timeline().as_any();
        if let Some(other) = timeline.downcast_ref::<StreamTimeline>() {
            if std::ptr::eq(other, &raw const *self.own) {
                Ok(())
            } else {
                self.own.wait_for(other, fence.point()).map(|_| ())
            }
        } else if let Some(end) = timeline.downcast_ref::<EndOfStream>() {
            end.event().map_or(Ok(()), |event| self.own.stream().wait_event(event).map_err(lift))
        } else {
            // The host's own work. That it failed is told to who awaits it.
            let _over = fence.wait();
            Ok(())
        }
    }

    /// Whether the device can wait for the fence by itself.
    pub(super) fn can_come_after(fence: &Fence) -> bool {
        let timeline = fence.timeline().as_any();
        timeline.is::<StreamTimeline>() || timeline.is::<EndOfStream>()
    }

    /// Whether someone captures the stream into a graph: it must neither be asked nor waited for then.
    pub(super) fn is_captured(&self) -> bool {
        let mut status = 0;
        let asked = RelaxedCapture::enter().and_then(|_capture| {
            // The handle of a default stream means one of the current context.
            let _bound = self.own.context().enter()?;
            // SAFETY: the stream is valid, the out pointer for the call.
            check("cuStreamIsCapturing", unsafe { ffi::cuStreamIsCapturing(self.own.raw(), &mut status) })
        });
        match asked {
            Ok(()) => status != 0,
            // The legacy stream cannot be asked while a stream is captured that it would wait for (906).
            Err(error) => error.code().is_some_and(|code| (900..=908).contains(&code)),
        }
    }
}
