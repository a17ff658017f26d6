//! A slice of the caller's for the length of a blocking call, as a buffer.

use std::{any::Any, marker::PhantomData, ops::Deref, ptr::NonNull, sync::Arc};

use transload_core::{DeviceId, MemoryKind, Place, Pod, RawBuffer, Reclaimer, Storage};

/// A buffer over borrowed host memory. Dropping it waits until no operation uses the slice any more.
pub struct Borrowed<'a> {
    buffer: RawBuffer,
    slice: PhantomData<&'a mut [u8]>,
}

struct Slice {
    address: NonNull<u8>,
    bytes: usize,
    writable: bool,
}

// SAFETY: the slice stays borrowed while this is used, and its elements are plain bytes.
unsafe impl Send for Slice {}
// SAFETY: as above; access is ordered by the buffer over it.
unsafe impl Sync for Slice {}

// SAFETY: the slice is initialised and valid for its length; `Borrowed` keeps it so until no operation uses it.
unsafe impl Storage for Slice {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, MemoryKind::Pageable)
    }

    fn len(&self) -> usize {
        self.bytes
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        Some(self.address)
    }

    fn device_address(&self) -> Option<u64> {
        None
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Borrows a slice to be read.
///
/// # Safety
/// * The value must be dropped, not forgotten, and the buffer must not be cloned out of it: its drop is what waits.
pub unsafe fn borrow<T: Pod>(slice: &[T]) -> Borrowed<'_> {
    make(NonNull::from(slice).cast(), size_of_val(slice), false)
}

/// Borrows a slice to be written.
///
/// # Safety
/// * As for [`borrow`].
pub unsafe fn borrow_mut<T: Pod>(slice: &mut [T]) -> Borrowed<'_> {
    let bytes = size_of_val(slice);
    make(NonNull::from(slice).cast(), bytes, true)
}

fn make<'a>(address: NonNull<u8>, bytes: usize, writable: bool) -> Borrowed<'a> {
    let storage = Box::new(Slice { address, bytes, writable });
    Borrowed { buffer: RawBuffer::new(storage, &Arc::new(Reclaimer::new())), slice: PhantomData }
}

impl Deref for Borrowed<'_> {
    type Target = RawBuffer;

    fn deref(&self) -> &RawBuffer {
        &self.buffer
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        // An error means that the device is lost and touches nothing any more.
        let _over = self.buffer.wait_idle();
    }
}
