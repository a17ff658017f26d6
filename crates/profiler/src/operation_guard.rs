//! An operation that the caller begins and ends.

use std::{fmt, sync::Arc, time::Instant};

use transload_core::{Queue, Result};

#[cfg(feature = "nvtx")]
use crate::nvtx;
use crate::{
    StreamProfiler,
    inbox::{NamedOperation, NamedTime},
    pending::OpenBegin,
};

/// An operation of the caller's on a queue, from [`StreamProfiler::operation`]. Its drop ends it.
#[must_use = "its drop ends the operation"]
pub struct OperationGuard<'a> {
    pub(crate) profiler: StreamProfiler,
    pub(crate) queue: &'a dyn Queue,
    pub(crate) begun: Option<(NamedOperation, Arc<OpenBegin>)>,
    #[cfg(feature = "nvtx")]
    pub(crate) range: Option<nvtx::Range>,
}

impl OperationGuard<'_> {
    /// Ends the operation.
    ///
    /// # Errors
    /// Those of [`Queue::stamp`]. The operation is counted then, without a duration.
    pub fn end(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        let Some((mut named, begin)) = self.begun.take() else { return Ok(()) };
        let end = self.queue.stamp();
        let outcome = end.map(|end| {
            named.submitted = Instant::now();
            named.time = NamedTime::Stamped(begin, end);
        });
        self.profiler.push(named);
        outcome
    }
}

impl Drop for OperationGuard<'_> {
    fn drop(&mut self) {
        // It is counted without a duration then.
        let _untimed = self.finish();
    }
}

impl fmt::Debug for OperationGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationGuard").field("device", &self.queue.device()).finish_non_exhaustive()
    }
}
