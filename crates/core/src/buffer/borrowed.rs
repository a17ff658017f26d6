//! The caller's slice as a buffer, for the duration of a blocking call.

use std::{marker::PhantomData, ops::Deref, ptr::NonNull, sync::Arc};

use crate::{HostBytes, MemoryKind, Pod, RawBuffer, Reclaimer};

/// A buffer over borrowed host memory. Dropping it waits until no operation uses the slice.
pub struct Borrowed<'a> {
    buffer: RawBuffer,
    slice: PhantomData<&'a mut [u8]>,
}

/// Borrows a slice for reading.
///
/// # Safety
/// * The value must be dropped, not forgotten, and no clone of the buffer may be used after that: dropping is what waits.
pub unsafe fn borrow<T: Pod>(slice: &[T]) -> Borrowed<'_> {
    // SAFETY: the caller's promise, and the slice stays borrowed while the returned value lives.
    unsafe { make(NonNull::from(slice).cast(), size_of_val(slice), false) }
}

/// Borrows a slice for writing.
///
/// # Safety
/// * As for [`borrow`].
pub unsafe fn borrow_mut<T: Pod>(slice: &mut [T]) -> Borrowed<'_> {
    let bytes = size_of_val(slice);
    // SAFETY: as for `borrow`.
    unsafe { make(NonNull::from(slice).cast(), bytes, true) }
}

/// # Safety
/// * The bytes stay borrowed while the returned value lives, which is dropped and never cloned.
unsafe fn make<'a>(address: NonNull<u8>, bytes: usize, writable: bool) -> Borrowed<'a> {
    // SAFETY: the caller's promise; dropping the returned value waits for all uses.
    let storage = unsafe { HostBytes::new((), address, bytes, MemoryKind::Pageable, writable) };
    let buffer = RawBuffer::new(Box::new(storage), &Arc::new(Reclaimer::new()));
    Borrowed { buffer, slice: PhantomData }
}

impl Deref for Borrowed<'_> {
    type Target = RawBuffer;

    fn deref(&self) -> &RawBuffer {
        &self.buffer
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        // An error means that the device is lost and no longer accesses memory.
        let _over = self.buffer.wait_idle();
    }
}
