//! One driver call of a caller's choice as one operation of a stream.

use std::sync::Arc;

use transload_core::{Error, ErrorKind, Fence, Result, Timeline};
use transload_cuda_sys::{DriverError, RawStream};
use transload_memory::lift;

use crate::{CudaStream, metrics::Counted, timeline::StreamTimeline};

impl CudaStream {
    /// Enqueues what `call` enqueues on the raw stream, behind the fences, and marks its end. The stream's context is
    /// current during the call.
    ///
    /// # Errors
    /// `Unsupported` for a fence of another backend; the driver's. Nothing of `call` is under way then.
    ///
    /// # Safety
    /// * What `call` enqueues uses only memory that stays alive, and that nothing else uses in conflict, until the fence is
    ///   over.
    pub(crate) unsafe fn enqueue_call(
        &self,
        after: &[Fence],
        call: impl FnOnce(RawStream) -> Result<(), DriverError>,
    ) -> Result<Fence> {
        self.own.check_runs()?;
        let _bound = self.own.context().enter().map_err(lift)?;
        for fence in after {
            let Some(other) = fence.timeline().as_any().downcast_ref::<StreamTimeline>() else {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "a stream cannot wait for this kind of fence",
                ));
            };
            // What is earlier in the same stream is done earlier.
            if other.id() != self.own.id() {
                self.own.wait_for(other, fence.point())?;
            }
        }
        // Whoever waits for a small copy before the kernel must not wait for the kernel.
        self.own.close_run().map_err(lift)?;
        let counted = self.own.metrics.next();
        let start = match counted {
            Counted::Timed => Some(self.own.record_start(false, true).map_err(lift)?),
            Counted::No | Counted::Yes => None,
        };
        call(self.own.raw()).map_err(lift)?;
        // Without a fence nobody would wait for what was just enqueued.
        let point = self.own.record_end(start, "launch").map_err(|error| self.own.settle_unmarked(error))?;
        if counted != Counted::No {
            self.own.metrics.count_launch();
        }
        Ok(Fence::new(Arc::clone(&self.timeline), point))
    }
}
