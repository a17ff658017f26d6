//! What `src/buffer/raw_buffer.rs` gives the table of a buffer.

use transload_core::{BufferId, Place};

pub(crate) struct RawBuffer(pub(crate) transload_core::RawBuffer);

impl RawBuffer {
    pub(crate) fn id(&self) -> BufferId {
        self.0.id()
    }

    pub(crate) fn place(&self) -> Place {
        self.0.place()
    }
}
