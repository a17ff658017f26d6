//! An allocation whose last handle was dropped, kept whole for the next buffer: its host memory is used again, too.

use std::{fmt, sync::Arc};

use crate::{RawBuffer, raw_buffer::Block};

/// Takes allocations whose last [`RawBuffer`] was dropped; see [`RawBuffer::new_recycled`].
pub trait Recycler: Send + Sync + 'static {
    /// Keeps the allocation for another buffer, or drops it, which ends it like any other. Called on the thread that dropped
    /// the last handle; must not block on the device. `self` is the reference that the allocation held, for the next buffer.
    fn recycle(self: Arc<Self>, spare: SpareBuffer);
}

/// An allocation without a buffer. Work on it may still be in flight: dropped, it ends like a buffer.
pub struct SpareBuffer {
    /// The only reference.
    block: Arc<Block>,
}

impl SpareBuffer {
    /// Gives the allocation to its recycler if this was the last handle, a weak one included.
    #[inline]
    pub(crate) fn recycle(mut block: Arc<Block>) {
        let recycler = Arc::get_mut(&mut block).and_then(|block| block.recycler_mut().take());
        if let Some(recycler) = recycler {
            recycler.recycle(Self { block });
        }
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.block.len()
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
        Arc::get_mut(&mut self.block).is_some_and(Block::renew)
    }

    /// A buffer over all of it, given to `recycler` in turn. Without a [`renew`](Self::renew) that returned `true` it has the
    /// identity of the previous one, and whatever uses it waits for what is in flight.
    #[must_use]
    #[inline]
    pub fn into_buffer(mut self, recycler: Arc<dyn Recycler>) -> RawBuffer {
        if let Some(block) = Arc::get_mut(&mut self.block) {
            *block.recycler_mut() = Some(recycler);
        }
        RawBuffer::whole(self.block)
    }
}

impl fmt::Debug for SpareBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpareBuffer({} bytes)", self.len())
    }
}
