//! Memory that is aligned to nothing, as that of other libraries may be.

use std::{any::Any, ptr::NonNull, sync::Arc};

use transload_core::{Place, RawBuffer, Storage};

/// Memory of somebody's that begins in the middle of an allocation.
struct Shifted(RawBuffer);

// SAFETY: every answer is that of a slice of live memory, which is owned until drop and used by nobody else.
unsafe impl Storage for Shifted {
    fn place(&self) -> Place {
        self.0.place()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.0.host_address()
    }

    fn device_address(&self) -> Option<u64> {
        self.0.device_address()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// All but the first 5 and the last 3 bytes of an allocation, as a buffer by itself.
pub(crate) fn shifted(whole: &RawBuffer) -> RawBuffer {
    let part = Shifted(whole.slice(5..whole.len() - 3).unwrap());
    RawBuffer::new(Box::new(part), &Arc::default())
}
