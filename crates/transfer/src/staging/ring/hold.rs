//! Keeps a staging buffer for a transfer from its submission to its end.

use std::{ops::Deref, sync::Arc};

use transload_core::Result;

use super::{StagingRing, StagingTuning};

/// Keeps one buffer in the ring, so that the transfer can be staged whenever its dependencies are complete.
pub(crate) struct RingHold {
    ring: Arc<StagingRing>,
    /// What the transfer is divided by.
    pub(crate) tuning: StagingTuning,
    /// Whether other transfers held a buffer when it began to.
    pub(crate) is_shared: bool,
}

impl StagingRing {
    /// Holds a buffer; allocates the first one.
    ///
    /// # Errors
    /// Those of [`allocate_first`](Self::allocate_first).
    pub(crate) fn hold(self: &Arc<Self>, insist: bool) -> Result<RingHold> {
        let mut state = self.state.lock();
        let is_shared = state.holds > 0;
        state.holds += 1;
        let hold = RingHold { ring: Arc::clone(self), tuning: state.tuning().0, is_shared };
        let is_ready = state.has_buffer();
        drop(state);
        if !is_ready {
            self.allocate_first(insist)?;
        }
        Ok(hold)
    }
}

impl Deref for RingHold {
    type Target = Arc<StagingRing>;

    fn deref(&self) -> &Arc<StagingRing> {
        &self.ring
    }
}

impl Drop for RingHold {
    fn drop(&mut self) {
        self.ring.state.lock().holds -= 1;
    }
}
