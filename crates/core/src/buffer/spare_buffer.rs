//! Allocations whose last handle was dropped, to be reused as a whole by the next buffer, including the
//! buffer's own host memory.

use std::{fmt, sync::Arc};

use crate::{Fence, RawBuffer, buffer::raw_buffer::Allocation};

/// Receives allocations whose last [`RawBuffer`] was dropped; see [`RawBuffer::new_recycled`].
///
/// # Safety
/// The allocation holds a reference to its recycler, perhaps the last one. So:
///
/// * [`recycle`](Self::recycle) does not use `self` after it made the buffer available to other threads, or
///   dropped it.
/// * The implementing type contains an `UnsafeCell`, as locks and atomics do: the reference may dangle by the
///   time `recycle` returns.
pub unsafe trait Recycler: Send + Sync + 'static {
    /// Keeps the allocation for another buffer, or drops it like any other. `is_idle` tells that all work on
    /// it is known to be complete, so that [`SpareBuffer::renew`] is not needed. Called on the thread that
    /// dropped the last handle; must not block on the device.
    fn recycle(&self, spare: SpareBuffer, is_idle: bool);
}

/// An allocation without a buffer. Work on it may still be in flight; dropping it is like dropping a buffer.
pub struct SpareBuffer {
    /// The only reference.
    allocation: Arc<Allocation>,
}

impl SpareBuffer {
    /// Gives the allocation to its recycler if this was the last handle, including weak ones.
    #[inline]
    pub(crate) fn recycle(mut allocation: Arc<Allocation>) {
        let Some(last) = Arc::get_mut(&mut allocation) else { return };
        let is_idle = last.renew();
        let Some(recycler) = last.recycler().map(Arc::as_ptr) else { return };
        // SAFETY: the allocation has a reference to the recycler, which promises not to use itself after it
        // gave the allocation away.
        unsafe { &*recycler }.recycle(Self { allocation }, is_idle);
    }

    /// Returns its length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.allocation.len()
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Prepares it for another buffer, if all work on it is known to be complete, without querying the
    /// driver. Returns whether it is. Drops fences, so call it without a lock.
    #[inline]
    pub fn renew(&mut self) -> bool {
        Arc::get_mut(&mut self.allocation).is_some_and(Allocation::renew)
    }

    /// Returns the fences of work that is not known to be complete.
    #[must_use]
    pub fn in_flight(&self) -> Vec<Fence> {
        self.allocation.hazards().outstanding().into_vec()
    }

    /// Creates a buffer over the whole allocation, for the same recycler. Unless [`renew`](Self::renew)
    /// returned `true`, it has the id of the previous buffer, and its users wait for the work in flight.
    #[must_use]
    #[inline]
    pub fn into_buffer(self) -> RawBuffer {
        RawBuffer::whole(self.allocation)
    }
}

impl fmt::Debug for SpareBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpareBuffer({} bytes)", self.len())
    }
}
