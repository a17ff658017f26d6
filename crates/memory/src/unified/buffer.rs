//! The typed buffer that host and devices share.

use std::{fmt, marker::PhantomData, ops::RangeBounds};

use transload_core::{
    Access, Buffer, DeviceId, Error, ErrorKind, MemoryKind, Pod, Queue, QueueLease, RawBuffer, Result,
    bytes_of_elements, check_same_len,
};

use super::{DeviceAccess, Role, UnifiedMode, UnifiedSlice, UnifiedSliceMut, inner::Inner};
use crate::CudaMemoryManager;

/// `len` elements of `T` that the host and a device use in turn, all bytes zero at first.
///
/// The host looks at it through slices ([`read`](Self::read), [`write`](Self::write)), a device through a guard
/// ([`acquire_for_device`](Self::acquire_for_device)) or through any operation on [`raw`](Buffer::raw). Whoever comes sees what
/// was written before, whichever side wrote it. A slice waits for devices' work on its range that would conflict; while it is
/// open such work, and a guard for it, are answered `Busy`; while a guard lives, slices in conflict are. Readers never exclude
/// each other.
///
/// Where the device cannot use managed memory at the same time as the host, the same holds with device memory and a pinned copy:
/// [`UnifiedMode`].
///
/// Usable from any thread. It is freed once, when it and all that is in flight on it are gone; dropping it does not wait. Work is
/// ordered by the buffer across all queues; what has no queue of the caller's goes on the buffer's own.
///
/// ```
/// # #[cfg(any(target_os = "linux", windows))] {
/// use transload_core::{Buffer, QueueLease};
/// use transload_memory::{CudaDevice, CudaMemoryManager, UnifiedBuffer};
///
/// fn sum(queue: QueueLease) -> transload_core::Result<f32> {
///     let memory = CudaMemoryManager::new(&CudaDevice::new(0)?)?;
///     let buffer = UnifiedBuffer::<f32>::new(&memory, queue, 1024)?;
///     buffer.write()?[0] = 5.0;
///     buffer.prefetch_to_device(None).wait()?;
///     buffer.fill(0.5)?;
///     Ok(buffer.read()?.iter().sum())
/// }
/// # let _ = sum;
/// # }
/// ```
pub struct UnifiedBuffer<T> {
    pub(crate) inner: Inner,
    elements: PhantomData<fn() -> T>,
}

/// The name that earlier systems have for a [`UnifiedBuffer`]; of bytes where nothing else is said.
pub type UnifiedAllocation<T = u8> = UnifiedBuffer<T>;

impl<T: Pod> UnifiedBuffer<T> {
    /// A buffer in the mode of the manager's device. `queue` is one of that device.
    ///
    /// # Errors
    /// `InvalidArgument` where `len` is 0, `T` has no size, the size overflows, or the queue is another device's; `OutOfMemory`
    /// with the numbers; the driver's.
    pub fn new(memory: &CudaMemoryManager, queue: QueueLease, len: usize) -> Result<Self> {
        Self::new_with_mode(memory, queue, len, UnifiedMode::of(memory.device())?)
    }

    /// A buffer in a mode.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and `Unsupported` for [`UnifiedMode::Managed`] on a device that has it not.
    pub fn new_with_mode(
        memory: &CudaMemoryManager,
        queue: QueueLease,
        len: usize,
        mode: UnifiedMode,
    ) -> Result<Self> {
        let bytes = bytes_of_elements::<T>(len)?;
        Self::over(Inner::allocate(memory, queue, bytes, mode)?)
    }

    /// Elements over managed memory that exists, or a slice of it, a pool's block say; nothing is copied, and it is not made
    /// zero. Memory that host and device use at the same time only. What was advised on it stays until it is first given to a
    /// device for a role.
    ///
    /// # Errors
    /// `Unsupported` for other memory; `InvalidArgument` where its length is no whole number of elements, the address is not
    /// aligned for them, `T` has no size, or memory and queue are not of the manager's device.
    pub fn from_raw(memory: &CudaMemoryManager, queue: QueueLease, raw: RawBuffer) -> Result<Self> {
        Self::over(Inner::wrap(memory, queue, raw)?)
    }

    /// The bytes as devices use them, without a copy: managed memory, or device memory where the mode is
    /// [`Explicit`](UnifiedMode::Explicit).
    ///
    /// # Errors
    /// The driver's, where what the host wrote last cannot be sent to the device. It is tried once more then, as where a buffer
    /// is dropped, for whoever has a clone of [`raw`](Buffer::raw).
    pub fn into_raw(self) -> Result<RawBuffer> {
        self.inner.retry_failed_uploads()?;
        Ok(self.inner.raw.clone())
    }

    fn over(inner: Inner) -> Result<Self> {
        let (size, alignment) = (size_of::<T>(), align_of::<T>());
        let aligned = |raw: &RawBuffer| {
            raw.host_address().is_none_or(|address| address.as_ptr().addr().is_multiple_of(alignment))
        };
        let bytes = inner.raw.len();
        let whole = size > 0 && bytes.is_multiple_of(size);
        if whole && aligned(&inner.raw) && inner.host.as_ref().is_none_or(aligned) {
            return Ok(Self { inner, elements: PhantomData });
        }
        let text =
            format!("{bytes} bytes are no whole number of elements of {size} bytes aligned to {alignment}");
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// How host and device share it.
    #[must_use]
    pub fn mode(&self) -> UnifiedMode {
        self.inner.mode()
    }

    /// The address of the first element as devices use it. The buffer must be kept alive while the address is used, and what goes
    /// through it is not ordered by the buffer: prefer [`acquire_for_device`](Self::acquire_for_device).
    #[must_use]
    pub fn as_ptr(&self) -> *const T {
        let address = self.inner.raw.device_address().and_then(|address| usize::try_from(address).ok());
        std::ptr::with_exposed_provenance(address.unwrap_or(0))
    }

    /// Reads all of it from the host: blocks until devices' work that writes it is done.
    ///
    /// # Errors
    /// `Busy` where a writable slice or a guard for writing is open; the driver's.
    pub fn read(&self) -> Result<UnifiedSlice<'_, T>> {
        self.read_range(..)
    }

    /// Reads a range of elements; see [`read`](Self::read).
    ///
    /// # Errors
    /// As for `read`, and `OutOfRange`.
    pub fn read_range(&self, range: impl RangeBounds<usize>) -> Result<UnifiedSlice<'_, T>> {
        let range = self.inner.bytes(range, size_of::<T>())?;
        self.inner.open(range, Access::Read, true).map(UnifiedSlice::new)
    }

    /// As [`read_range`](Self::read_range), but answers `Busy` instead of waiting for work of others.
    ///
    /// # Errors
    /// As for `read_range`.
    pub fn try_read(&self, range: impl RangeBounds<usize>) -> Result<UnifiedSlice<'_, T>> {
        let range = self.inner.bytes(range, size_of::<T>())?;
        self.inner.open(range, Access::Read, false).map(UnifiedSlice::new)
    }

    /// Writes all of it from the host: blocks until devices' work that uses it is done. The slice holds what was there. HostAccessGuard one
    /// for much at a time: in the explicit mode each is a copy when it closes.
    ///
    /// # Errors
    /// `Busy` where a slice or a guard is open; the driver's.
    pub fn write(&self) -> Result<UnifiedSliceMut<'_, T>> {
        self.write_range(..)
    }

    /// Writes a range of elements; see [`write`](Self::write).
    ///
    /// # Errors
    /// As for `write`, and `OutOfRange`.
    pub fn write_range(&self, range: impl RangeBounds<usize>) -> Result<UnifiedSliceMut<'_, T>> {
        let range = self.inner.bytes(range, size_of::<T>())?;
        self.inner.open(range, Access::Write, true).map(UnifiedSliceMut::new)
    }

    /// As [`write_range`](Self::write_range), but answers `Busy` instead of waiting for work of others.
    ///
    /// # Errors
    /// As for `write_range`.
    pub fn try_write(&self, range: impl RangeBounds<usize>) -> Result<UnifiedSliceMut<'_, T>> {
        let range = self.inner.bytes(range, size_of::<T>())?;
        self.inner.open(range, Access::Write, false).map(UnifiedSliceMut::new)
    }

    /// Gives all of it to the queue's device for a role: with the advice and the prefetch that go with it, on that queue, where
    /// the memory is managed. Does not wait for the device.
    ///
    /// # Errors
    /// `Busy` where a host slice in conflict is open; `Unsupported` for a device that the memory cannot be moved to; the driver's.
    pub fn acquire_for_device(&self, queue: &dyn Queue, role: Role) -> Result<DeviceAccess<'_, T>> {
        self.acquire_range_for_device(queue, .., role, role.access())
    }

    /// Gives a range of elements to the queue's device; see [`acquire_for_device`](Self::acquire_for_device). A resident operand
    /// that is only read says so by `access`, and the host may read it meanwhile.
    ///
    /// # Errors
    /// As for `acquire_for_device`, `OutOfRange`, and `InvalidArgument` for an input that is to be written.
    pub fn acquire_range_for_device(
        &self,
        queue: &dyn Queue,
        range: impl RangeBounds<usize>,
        role: Role,
        access: Access,
    ) -> Result<DeviceAccess<'_, T>> {
        let range = self.inner.bytes(range, size_of::<T>())?;
        DeviceAccess::acquire(&self.inner, queue, range, role, access)
    }
}

impl<T: Pod> Buffer<T> for UnifiedBuffer<T> {
    /// What devices use. Where the mode is [`Explicit`](UnifiedMode::Explicit) it is device memory, and up to date for whoever
    /// comes after the last slice in the order of the buffer.
    fn raw(&self) -> &RawBuffer {
        &self.inner.raw
    }

    fn device(&self) -> DeviceId {
        self.inner.device.id()
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Unified
    }

    fn fill(&self, value: T) -> Result<()> {
        self.inner.fill(bytemuck::bytes_of(&value))
    }

    fn copy_from_host(&self, source: &[T]) -> Result<()> {
        check_same_len(self.len(), source.len())?;
        self.inner.copy_from_host(bytemuck::cast_slice(source))
    }

    fn copy_to_host(&self, destination: &mut [T]) -> Result<()> {
        check_same_len(self.len(), destination.len())?;
        self.inner.copy_to_host(bytemuck::cast_slice_mut(destination))
    }
}

impl<T> fmt::Debug for UnifiedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "UnifiedBuffer<{element}>({:?}, {})", self.inner.raw, self.inner.mode())
    }
}
