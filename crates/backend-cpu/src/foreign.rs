//! Owners of memory that this backend did not allocate.

use std::{mem::ManuallyDrop, ptr::NonNull};

/// A vector taken apart, so that no reference to its bytes exists beside the buffer's.
pub(crate) struct VecOwner {
    address: NonNull<u8>,
    len: usize,
    capacity: usize,
}

// SAFETY: it owns the vector's bytes, as a `Vec<u8>` does.
unsafe impl Send for VecOwner {}
// SAFETY: nothing is reachable through a shared reference.
unsafe impl Sync for VecOwner {}

impl VecOwner {
    pub(crate) fn new(bytes: Vec<u8>) -> (Self, NonNull<u8>) {
        let mut bytes = ManuallyDrop::new(bytes);
        // A vector's pointer is never null.
        let address = NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling());
        (Self { address, len: bytes.len(), capacity: bytes.capacity() }, address)
    }
}

impl Drop for VecOwner {
    fn drop(&mut self) {
        // SAFETY: these are the parts of the vector that `new` kept from being dropped.
        drop(unsafe { Vec::from_raw_parts(self.address.as_ptr(), self.len, self.capacity) });
    }
}

/// Whatever owns readable bytes, at an address of its own: moving this does not move the owner, and no reference to the
/// owner is formed until it is dropped.
pub(crate) struct BoxedOwner {
    owner: NonNull<dyn Send + Sync>,
}

// SAFETY: the owner may be sent.
unsafe impl Send for BoxedOwner {}
// SAFETY: the owner may be shared.
unsafe impl Sync for BoxedOwner {}

impl BoxedOwner {
    /// Boxes the owner and asks it, in its final place, where its bytes are.
    pub(crate) fn new<O: AsRef<[u8]> + Send + Sync + 'static>(owner: O) -> (Self, NonNull<u8>, usize) {
        let owner = NonNull::from(Box::leak(Box::new(owner)));
        // SAFETY: just boxed, and not dropped before `Self` is. The slice lives as long as a shared borrow of the owner
        // could, and nothing borrows the owner mutably before its drop.
        let bytes = unsafe { owner.as_ref() }.as_ref();
        let (address, len) = (NonNull::from(bytes).cast(), bytes.len());
        (Self { owner }, address, len)
    }
}

impl Drop for BoxedOwner {
    fn drop(&mut self) {
        // SAFETY: leaked from a box in `new`, and dropped only here.
        drop(unsafe { Box::from_raw(self.owner.as_ptr()) });
    }
}

/// Memory that somebody else owns and keeps.
pub(crate) struct Borrowed;
