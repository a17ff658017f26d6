//! A handle of a buffer that does not keep its memory.

use std::{fmt, sync::Weak};

use crate::{RawBuffer, buffer::raw_buffer::Allocation};

/// A weak handle of an allocation; see [`RawBuffer::downgrade`].
#[derive(Clone)]
pub struct WeakBuffer {
    pub(super) allocation: Weak<Allocation>,
}

impl WeakBuffer {
    /// Returns whether the allocation has a handle.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.allocation.strong_count() > 0
    }

    /// Returns a view of the whole allocation, if it is still alive.
    #[must_use]
    pub fn upgrade(&self) -> Option<RawBuffer> {
        self.allocation.upgrade().map(RawBuffer::whole)
    }
}

impl fmt::Debug for WeakBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_alive() { "WeakBuffer" } else { "WeakBuffer(gone)" })
    }
}
