//! Events of fences, for other code to wait for.

use std::sync::Arc;

use transload_core::{Error, ErrorKind, Fence, Result, Timeline};
use transload_cuda_sys::{Event, EventTiming, RawEvent};

use crate::completion::{pending_events::PointState, timeline::StreamTimeline};

/// An event of the driver that is complete when a fence is, for other code to wait for (`cuStreamWaitEvent`). The fence of a transfer
/// comes from [`Transfer::enqueued`](transload_core::Transfer::enqueued).
#[derive(Debug)]
pub struct FenceEvent {
    /// Not recorded again while this value lives.
    event: Arc<Event>,
}

impl FenceEvent {
    /// Returns an event that is complete when the fence is. It may also cover work that was enqueued on the fence's stream later.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for the fence of another backend's work, which has no event: await it instead;
    /// [`ErrorKind::Busy`] while its stream is being captured; the driver's.
    pub fn of(fence: &Fence) -> Result<Self> {
        let Some(stream) = fence.timeline().as_any().downcast_ref::<StreamTimeline>() else {
            let text = format!("{fence:?} has no CUDA event; wait for it or await it");
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let event = match stream.cover(fence.point())? {
            PointState::Pending(event, _) if !transload_core::mutant!("streams/event-of-the-fence") => event,
            state => {
                if matches!(state, PointState::Unrecorded) {
                    stream.check_not_captured()?;
                    stream.wait(fence.point())?;
                }
                // An event that was never recorded is complete.
                Arc::new(
                    Event::new(stream.context(), EventTiming::Disabled)
                        .map_err(|error| stream.lift(error))?,
                )
            }
        };
        Ok(Self { event })
    }

    /// Returns the driver's event, valid while this value lives. Do not record or destroy it.
    #[must_use]
    pub fn as_raw(&self) -> RawEvent {
        self.event.as_raw()
    }

    /// Returns the driver's handle, a `CUevent`, as an integer.
    #[must_use]
    pub fn handle(&self) -> usize {
        self.as_raw().expose_provenance()
    }
}
