//! The memory of a buffer, implemented by backends.

use std::{any::Any, ptr::NonNull, sync::Arc};

use crate::{DeviceId, Fence, Place, RawBuffer, RegistrationSlot};

/// Memory of one kind on one device; freed on drop.
///
/// A [`RawBuffer`](crate::RawBuffer) drops its storage only when no operation in flight uses it, or if the
/// storage [adopted the fences](Self::adopt_fences). `drop` may run on any thread and must not block on the
/// device.
///
/// # Safety
/// * [`host_address`](Self::host_address), if any, is readable (and writable if
///   [`is_writable`](Self::is_writable)) for [`len`](Self::len) bytes, initialised, and aligned to 16 bytes
///   unless the memory is foreign, until `self` is dropped.
/// * [`device_address`](Self::device_address), if any, is valid for `len` bytes on the devices that can reach
///   this kind of memory, until `self` is dropped.
/// * The methods always return the same values.
/// * [`adopt_fences`](Self::adopt_fences) returns `true` only if the memory is neither freed nor reused
///   before all the fences are complete, except by work that waits for them on the device.
/// * If it has a [`registration_slot`](Self::registration_slot), `drop` frees the memory by [`RegistrationSlot::free`] only.
pub unsafe trait Storage: Send + Sync + 'static {
    /// Returns its device and kind of memory.
    fn place(&self) -> Place;

    /// Returns its length in bytes.
    fn len(&self) -> usize;

    /// Returns whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns its address for the host, if the host can address it.
    fn host_address(&self) -> Option<NonNull<u8>>;

    /// Returns the address by which queues of the host [copy in place](crate::Operation::CopyInPlace): of memory that is a device's,
    /// and that the host can address too, with no host views. It keeps the promises of [`host_address`](Self::host_address), which it is
    /// by default.
    fn mapped_address(&self) -> Option<NonNull<u8>> {
        self.host_address()
    }

    /// Returns its address for the device, if the device can address it; `None` by default.
    fn device_address(&self) -> Option<u64> {
        None
    }

    /// Returns the device whose driver made the host's memory, if other drivers do not know it: one of another family than CUDA's may pin
    /// memory of the host. `None` by default.
    fn maker(&self) -> Option<DeviceId> {
        None
    }

    /// Returns whether it may be written.
    fn is_writable(&self) -> bool {
        true
    }

    /// Offers the memory back while work is in flight on it, until the fences in `until` are complete. An
    /// allocator that stores them with the memory, and lets nothing use it before, returns `true` and is
    /// dropped at once. By default returns `false`, and the storage is dropped when the work is complete.
    ///
    /// Must not block on the device.
    fn adopt_fences(&mut self, until: &[Fence]) -> bool {
        let _pending_free_until_then = until;
        false
    }

    /// Returns where a registration of the memory with a driver is kept, which lasts until the memory is freed. `None`, the default,
    /// if other code may free the memory.
    fn registration_slot(&self) -> Option<&RegistrationSlot> {
        None
    }

    /// Returns `self`, for the backend's own queues.
    fn as_any(&self) -> &dyn Any;
}

impl RawBuffer {
    /// Calls `take` with the storage, if this is the only handle of the allocation, of all of it, no work in flight uses it, and no failed
    /// operation damaged it. If that returns a value, the buffer is dropped. For backends that give host memory back to whom it came
    /// from. Never blocks.
    ///
    /// # Errors
    /// The buffer, if it is not so, or `take` returned `None`.
    pub fn try_take<R>(mut self, take: impl FnOnce(&dyn Storage) -> Option<R>) -> Result<R, Self> {
        let is_whole = self.len() == self.allocation.len() && !self.allocation.is_alias;
        if !is_whole || Arc::get_mut(&mut self.allocation).is_none() {
            return Err(self);
        }
        // Forgets what is complete.
        let is_writable = self.try_write().is_ok() || crate::mutant!("core/damaged-memory-is-kept");
        if !is_writable {
            return Err(self);
        }
        // Another handle may have begun a use since, and may be gone. From here on there is none, nor a weak one.
        let last = Arc::get_mut(&mut self.allocation).filter(|last| last.hazards().outstanding().is_empty());
        last.and_then(|last| take(last.storage.as_deref()?)).ok_or(self)
    }

    /// Returns the address by which queues of the host [copy it in place](crate::Operation::CopyInPlace): its
    /// [address for the host](Self::host_address), or that of a device's memory that the host can address too.
    #[must_use]
    pub fn mapped_address(&self) -> Option<NonNull<u8>> {
        let of_device = || {
            let address = self.storage()?.mapped_address()?;
            // SAFETY: a slice's offset lies within the allocation, or at its end.
            Some(unsafe { address.add(self.offset()) })
        };
        self.host_address().or_else(of_device)
    }
}
