//! What a backend puts behind a buffer: memory with an owner.

use std::{any::Any, ptr::NonNull};

use crate::{Fence, Place};

/// Memory of one kind on one device; dropping it gives the memory back.
///
/// A [`RawBuffer`](crate::RawBuffer) drops its storage only when no operation in flight touches it, or the
/// storage [took the fences over](Self::adopt_fences). `drop` may run on any thread and must
/// not block on the device.
///
/// # Safety
/// * [`host_address`](Self::host_address), where given, must be readable (and writable if
///   [`is_writable`](Self::is_writable)) for [`len`](Self::len) bytes, initialised, and aligned to 16 bytes unless the
///   memory is foreign, until `self` is dropped.
/// * [`device_address`](Self::device_address), where given, must be valid for `len` bytes on the devices that the
///   place's kind promises, until `self` is dropped.
/// * None of the answers may change.
/// * [`adopt_fences`](Self::adopt_fences) may answer `true` only where the memory is neither given away nor used in another way
///   before all the fences are over, except by work that comes after them on the device.
pub unsafe trait Storage: Send + Sync + 'static {
    /// Whose memory, and of what kind.
    fn place(&self) -> Place;

    /// Its length in bytes.
    fn len(&self) -> usize;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the host sees it.
    fn host_address(&self) -> Option<NonNull<u8>>;

    /// Where the device sees it; by default it does not.
    fn device_address(&self) -> Option<u64> {
        None
    }

    /// Whether bytes may be put there.
    fn is_writable(&self) -> bool {
        true
    }

    /// Offers the memory back while work is in flight on it: what is over when the fences in `until` are. An allocator that
    /// keeps them beside the memory, and lets nobody use it before, answers `true` and is dropped at once. By default it is
    /// not taken over, and dropped when the work is over.
    ///
    /// Must not block on the device.
    fn adopt_fences(&mut self, until: &[Fence]) -> bool {
        let _parked_until_then = until;
        false
    }

    /// For the backend's own queues.
    fn as_any(&self) -> &dyn Any;
}
