//! Marks bytes that a failed write may have damaged, until they are written again.

use std::{any::Any, ops::Range, sync::Arc, task::Waker};

use crate::{
    DeviceId, Error, Fence, Result, Timeline, TimelineId, next_timeline_id, queue::source::source_failed,
};

/// Returns a complete fence of an operation that failed after a part of it was done.
pub(crate) fn failed(error: &Error) -> Fence {
    Fence::new(Arc::new(Mark { id: next_timeline_id(), error: error.clone() }), 1)
}

/// A complete timeline that takes the place of the failed write's fence, so segments are split and replaced
/// as usual, or is that fence. Keeps no backend's timeline alive.
struct Mark {
    id: TimelineId,
    error: Error,
}

/// Returns a mark for bytes that the failed write of this claim may have damaged.
pub(super) fn mark(range: &Range<usize>, claim: u32, cause: &Error) -> Fence {
    let text = format!(
        "bytes {} to {} may be damaged: the operation that wrote them (claim {claim} of the allocation) failed; write \
         them again, or call assume_written",
        range.start, range.end
    );
    Fence::new(Arc::new(Mark { id: next_timeline_id(), error: source_failed(text, cause) }), 1)
}

// SAFETY: it represents no work; the failed write is complete.
unsafe impl Timeline for Mark {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        u64::MAX
    }

    fn poll(&self, _: u64) -> Result<bool> {
        Err(self.error.clone())
    }

    fn wait(&self, _: u64) -> Result<()> {
        Err(self.error.clone())
    }

    fn wake_at(&self, _: u64, _: &Waker) -> bool {
        true
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
