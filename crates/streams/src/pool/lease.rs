//! A stream that was leased.

use std::{fmt, ops::Deref, sync::Arc};

use transload_core::{Queue, QueueLease};

use super::seat::Seat;
use crate::CudaStream;

/// A stream of a pool, until dropped; work may still be in flight then. May outlive the pool. Usable from any thread.
///
/// The stream can be cloned out of it; a clone keeps the stream alive and is no lease.
pub struct StreamLease {
    seat: Arc<Seat>,
}

impl StreamLease {
    #[inline]
    pub(crate) fn new(seat: Arc<Seat>) -> Self {
        Self { seat }
    }

    /// The same lease as core's type.
    #[must_use]
    pub fn into_queue(self) -> QueueLease {
        QueueLease::new(self.seat as Arc<dyn Queue>)
    }
}

impl Deref for StreamLease {
    type Target = CudaStream;

    #[inline]
    fn deref(&self) -> &CudaStream {
        &self.seat
    }
}

impl fmt::Debug for StreamLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamLease").field(&**self).finish()
    }
}
