//! A typed buffer shared by host and devices.

use std::{fmt, marker::PhantomData, ops::RangeBounds};

use transload_core::{
    Access, Buffer, DeviceId, Error, ErrorKind, MemoryKind, Pod, Queue, QueueLease, RawBuffer, Result,
    bytes_of_elements, slice_elements,
};

use super::{DeviceAccess, Role, UnifiedMode, UnifiedSlice, UnifiedSliceMut, inner::Inner};
use crate::CudaMemoryManager;

/// A buffer of `len` elements of `T` that host and devices access in turn, initially zero.
///
/// The host accesses it through slices ([`read`](Self::read), [`write`](Self::write)), a device through a guard
/// ([`acquire_for_device`](Self::acquire_for_device)) or any operation on [`raw`](Buffer::raw). Each sees all earlier
/// writes of either side. Opening a slice waits for conflicting device work on its range. While a slice is open,
/// conflicting device work and guards fail with `Busy`; while a guard exists, conflicting slices do. Readers never
/// conflict.
///
/// If the device lacks concurrent managed access, device memory and a pinned copy give the same guarantees: see
/// [`UnifiedMode`].
///
/// Usable from any thread. The memory is freed once the buffer is dropped and no work on it is in flight; dropping does
/// not wait. Work is ordered by the buffer across all queues; operations without a queue argument use the buffer's own.
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

/// Alternative name of [`UnifiedBuffer`]; of bytes by default.
pub type UnifiedAllocation<T = u8> = UnifiedBuffer<T>;

impl<T: Pod> UnifiedBuffer<T> {
    /// Creates a buffer in the mode of the manager's device. `queue` must belong to that device.
    ///
    /// # Errors
    /// `InvalidArgument` if `len` is 0, `T` has no size, the size overflows, or the queue belongs to another device;
    /// `OutOfMemory` with the numbers; the driver's.
    pub fn new(memory: &CudaMemoryManager, queue: QueueLease, len: usize) -> Result<Self> {
        Self::new_with_mode(memory, queue, len, UnifiedMode::of(memory.device())?)
    }

    /// Creates a buffer in the given mode.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and `Unsupported` for [`UnifiedMode::Managed`] on a device without it.
    pub fn new_with_mode(
        memory: &CudaMemoryManager,
        queue: QueueLease,
        len: usize,
        mode: UnifiedMode,
    ) -> Result<Self> {
        let bytes = bytes_of_elements::<T>(len)?;
        Self::over(Inner::allocate(memory, queue, bytes, mode)?)
    }

    /// Wraps existing managed memory, or a slice of it such as a pool's block, without copying or zeroing. Requires
    /// concurrent managed access. Earlier advice stays until the memory is first acquired for a role.
    ///
    /// # Errors
    /// `Unsupported` for other memory; `InvalidArgument` if its length is not a whole number of elements, the address
    /// is not aligned for them, `T` has no size, or memory or queue do not belong to the manager's device.
    pub fn from_raw(memory: &CudaMemoryManager, queue: QueueLease, raw: RawBuffer) -> Result<Self> {
        Self::over(Inner::wrap(memory, queue, raw)?)
    }

    /// Returns the bytes that devices use, without a copy: managed memory, or device memory in the
    /// [`Explicit`](UnifiedMode::Explicit) mode.
    ///
    /// # Errors
    /// The driver's if the latest host writes cannot be uploaded. The upload is then retried once more on drop, for
    /// clones of [`raw`](Buffer::raw).
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

    /// Returns how host and device share the buffer.
    #[must_use]
    pub fn mode(&self) -> UnifiedMode {
        self.inner.mode()
    }

    /// Returns the device address of the first element. Keep the buffer alive while the address is used. Work through
    /// the address is not ordered by the buffer: prefer [`acquire_for_device`](Self::acquire_for_device).
    #[must_use]
    pub fn as_ptr(&self) -> *const T {
        let address = self.inner.raw.device_address().and_then(|address| usize::try_from(address).ok());
        std::ptr::with_exposed_provenance(address.unwrap_or(0))
    }

    /// Opens the whole buffer for reading by the host. Blocks until device work that writes it is complete.
    ///
    /// # Errors
    /// `Busy` if a writable slice or a write guard is open; the driver's.
    pub fn read(&self) -> Result<UnifiedSlice<'_, T>> {
        self.read_range(..)
    }

    /// Opens a range of elements for reading; see [`read`](Self::read).
    ///
    /// # Errors
    /// As for `read`, and `OutOfRange`.
    pub fn read_range(&self, range: impl RangeBounds<usize>) -> Result<UnifiedSlice<'_, T>> {
        let range = self.inner.bytes(range, size_of::<T>())?;
        self.inner.open(range, Access::Read, true).map(UnifiedSlice::new)
    }

    /// Like [`read_range`](Self::read_range), but returns `Busy` instead of waiting.
    ///
    /// # Errors
    /// As for `read_range`.
    pub fn try_read(&self, range: impl RangeBounds<usize>) -> Result<UnifiedSlice<'_, T>> {
        let range = self.inner.bytes(range, size_of::<T>())?;
        self.inner.open(range, Access::Read, false).map(UnifiedSlice::new)
    }

    /// Opens the whole buffer for writing by the host, with its current content. Blocks until device work that uses it
    /// is complete. Prefer few large slices: in the explicit mode closing each one enqueues a copy.
    ///
    /// # Errors
    /// `Busy` if a slice or a guard is open; the driver's.
    pub fn write(&self) -> Result<UnifiedSliceMut<'_, T>> {
        self.write_range(..)
    }

    /// Opens a range of elements for writing; see [`write`](Self::write).
    ///
    /// # Errors
    /// As for `write`, and `OutOfRange`.
    pub fn write_range(&self, range: impl RangeBounds<usize>) -> Result<UnifiedSliceMut<'_, T>> {
        let range = self.inner.bytes(range, size_of::<T>())?;
        self.inner.open(range, Access::Write, true).map(UnifiedSliceMut::new)
    }

    /// Like [`write_range`](Self::write_range), but returns `Busy` instead of waiting.
    ///
    /// # Errors
    /// As for `write_range`.
    pub fn try_write(&self, range: impl RangeBounds<usize>) -> Result<UnifiedSliceMut<'_, T>> {
        let range = self.inner.bytes(range, size_of::<T>())?;
        self.inner.open(range, Access::Write, false).map(UnifiedSliceMut::new)
    }

    /// Acquires the whole buffer for the queue's device in a role. Managed memory gets the role's advice and prefetch
    /// on that queue. Does not wait for the device.
    ///
    /// # Errors
    /// `Busy` if a conflicting host slice is open; `Unsupported` for a device that the memory cannot be moved to; the
    /// driver's.
    pub fn acquire_for_device(&self, queue: &dyn Queue, role: Role) -> Result<DeviceAccess<'_, T>> {
        self.acquire_range_for_device(queue, .., role, role.access())
    }

    /// Acquires a range of elements for the queue's device; see [`acquire_for_device`](Self::acquire_for_device). A
    /// resident operand that is only read says so by `access`, and the host may then read it concurrently.
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

impl<T: Pod> AsRef<RawBuffer> for UnifiedBuffer<T> {
    fn as_ref(&self) -> &RawBuffer {
        self.raw()
    }
}

impl<T: Pod> Buffer<T> for UnifiedBuffer<T> {
    /// Returns the memory that devices use. In the [`Explicit`](UnifiedMode::Explicit) mode it is device memory, up to
    /// date for work ordered after the last slice.
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

    fn copy_from_host_at(&self, offset: usize, source: &[T]) -> Result<()> {
        let dst = slice_elements::<T>(&self.inner.raw, offset, source.len())?;
        self.inner.copy_from_host(bytemuck::cast_slice(source), &dst)
    }

    fn copy_to_host_at(&self, offset: usize, destination: &mut [T]) -> Result<()> {
        let src = slice_elements::<T>(&self.inner.raw, offset, destination.len())?;
        self.inner.copy_to_host(&src, bytemuck::cast_slice_mut(destination))
    }
}

impl<T> fmt::Debug for UnifiedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = std::any::type_name::<T>();
        write!(f, "UnifiedBuffer<{element}>({:?}, {})", self.inner.raw, self.inner.mode())
    }
}
