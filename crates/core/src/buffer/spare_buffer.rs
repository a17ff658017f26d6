//! An allocation whose last handle was dropped, kept whole for the next buffer: its host memory is used again, too.

use std::{fmt, sync::Arc};

use crate::{Fence, RawBuffer, buffer::raw_buffer::Allocation};

/// Takes allocations whose last [`RawBuffer`] was dropped; see [`RawBuffer::new_recycled`].
///
/// # Safety
/// The allocation holds a reference to its recycler, perhaps the last one. So:
///
/// * [`recycle`](Self::recycle) does not use `self` after it made the buffer available to other threads, or dropped it.
/// * The implementing type contains an `UnsafeCell`, as locks and atomics do: the reference may dangle by the time at which
///   `recycle` returns.
pub unsafe trait Recycler: Send + Sync + 'static {
    /// Keeps the allocation for another buffer, or drops it, which ends it like any other. `is_idle` says that everything on it
    /// is known to be complete, as by [`SpareBuffer::renew`]. Called on the thread that dropped the last handle; must not
    /// block on the device.
    fn recycle(&self, spare: SpareBuffer, is_idle: bool);
}

/// An allocation without a buffer. Work on it may still be in flight: dropped, it ends like a buffer.
pub struct SpareBuffer {
    /// The only reference.
    allocation: Arc<Allocation>,
}

impl SpareBuffer {
    /// Gives the allocation to its recycler if this was the last handle, a weak one included.
    #[inline]
    pub(crate) fn recycle(mut allocation: Arc<Allocation>) {
        let Some(last) = Arc::get_mut(&mut allocation) else { return };
        let is_idle = last.renew();
        let Some(recycler) = last.recycler().map(Arc::as_ptr) else { return };
        // SAFETY: the block has a reference to the recycler, which promises not to use itself once it gave the block away.
        unsafe { &*recycler }.recycle(Self { allocation }, is_idle);
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.allocation.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes it ready for another buffer, if everything on it is known to be complete, without querying the driver. Returns
    /// whether it is. Drops fences, so the caller holds no lock.
    #[inline]
    pub fn renew(&mut self) -> bool {
        Arc::get_mut(&mut self.allocation).is_some_and(Allocation::renew)
    }

    /// The fences of what is not known to be complete.
    #[must_use]
    pub fn in_flight(&self) -> Vec<Fence> {
        self.allocation.hazards().outstanding().into_vec()
    }

    /// A buffer over all of it, for the same recycler. Without a [`renew`](Self::renew) that returned `true` it has the
    /// identity of the previous one, and whatever uses it waits for what is in flight.
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
