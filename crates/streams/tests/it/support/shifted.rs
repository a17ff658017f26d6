//! Device memory at an arbitrary offset into other memory, as another library may provide.

use std::{any::Any, ptr::NonNull, sync::Arc};

use transload_core::{Place, RawBuffer, Reclaimer, Storage};

/// The buffer's bytes from `shift` on, as foreign memory.
pub(crate) fn shifted(buffer: &RawBuffer, shift: usize, reclaimer: &Arc<Reclaimer>) -> RawBuffer {
    RawBuffer::new(Box::new(Shifted(buffer.clone(), shift)), reclaimer)
}

struct Shifted(RawBuffer, usize);

// SAFETY: it describes a part of the buffer's bytes, and keeps the buffer.
unsafe impl Storage for Shifted {
    fn place(&self) -> Place {
        self.0.place()
    }

    fn len(&self) -> usize {
        self.0.len() - self.1
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        None
    }

    fn device_address(&self) -> Option<u64> {
        self.0.device_address().map(|address| address + self.1 as u64)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
