//! Lends staging buffers until a fence is complete, with no thread that waits for it.

use std::{ptr::NonNull, sync::Arc};

use smallvec::SmallVec;
use transload_core::{Fence, RawBuffer, Result};

use super::{StagingBuffer, StagingRing, State, allocation::unavailable};

/// A buffer that is not in the ring. When dropped, it is lent until its fence is complete, or back in the ring if it has none.
pub(crate) struct LentBuffer {
    ring: Arc<StagingRing>,
    /// `Some` until it is dropped.
    buffer: Option<StagingBuffer>,
    /// Completes after all uses.
    until: Option<Fence>,
}

impl StagingRing {
    /// Takes a buffer out of the ring if another one is left: nobody returns a lent one, so transfers that wait for a buffer need one that
    /// is returned.
    pub(crate) fn lend(self: &Arc<Self>) -> Option<LentBuffer> {
        let mut state = self.state.lock();
        state.take_back();
        let left = usize::from(!transload_core::mutant!("transfer/lends-the-last-buffer"));
        if state.free.len() <= left {
            let is_lent = !state.lent.is_empty();
            // The first transfers of a process would else find one buffer for ever.
            let most = if state.in_circulation() == 1 { self.most_now(&state) } else { 0 };
            let (to_allocate, what) = state.reserve_allocations(most, 1);
            drop(state);
            (0..to_allocate).for_each(|_| self.spawn_allocation(what));
            if is_lent {
                self.take_back_complete();
            }
            return None;
        }
        let buffer = state.pop_free();
        drop(state);
        buffer.map(|buffer| LentBuffer { ring: Arc::clone(self), buffer: Some(buffer), until: None })
    }

    /// Takes back the lent buffers whose fences are complete, of which the driver is asked.
    pub(super) fn take_back_complete(&self) {
        let lent: SmallVec<[Fence; 16]> =
            self.state.lock().lent.iter().map(|(_, until)| until.clone()).collect();
        // Asks about each.
        if lent.iter().filter(|until| until.is_complete()).count() > 0 {
            self.state.lock().take_back();
        }
    }
}

impl LentBuffer {
    /// Returns the first `bytes` bytes and their host address.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](transload_core::ErrorKind::OutOfRange) for more than a staging buffer has.
    pub(crate) fn slice(&self, bytes: usize) -> Result<(RawBuffer, NonNull<u8>)> {
        self.buffer.as_ref().ok_or_else(|| unavailable("it was returned"))?.slice(bytes)
    }

    /// Keeps it out of the ring until this fence is complete.
    pub(crate) fn until(&mut self, fence: &Fence) {
        self.buffer.iter().for_each(|buffer| buffer.keep_until(std::slice::from_ref(fence)));
        self.until = Some(fence.clone());
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        match self.until.take().filter(|_| !transload_core::mutant!("transfer/lent-until-complete")) {
            Some(until) => self.ring.state.lock().lent.push((buffer, until)),
            None => drop(self.ring.return_buffer(buffer, None)),
        }
    }
}

impl State {
    /// Takes back the lent buffers whose fences are known to be complete.
    pub(super) fn take_back(&mut self) {
        let Self { lent, free, .. } = self;
        free.extend(lent.extract_if(.., |(_, until)| until.is_known_complete()).map(|(buffer, _)| buffer));
    }

    /// Returns the buffers that exist and are not lent.
    pub(super) fn in_circulation(&self) -> usize {
        self.allocated - self.allocating - self.lent.len()
    }
}
