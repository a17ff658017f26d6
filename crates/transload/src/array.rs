//! Typed elements in any memory.

use std::{fmt, marker::PhantomData, ops::RangeBounds, sync::Arc};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, Buffer, DeviceId, Error, ErrorKind, MemoryKind, Operation, Place, Pod, QueueLease, RawBuffer,
    ReadGuard, Result, StreamPriority, Timing, WorkloadType, WriteGuard, borrow, borrow_mut, fill,
    range_within, slice_elements, submit,
};

/// Elements of `T` in any memory of any device. Clones and slices share the allocation, which is freed when the last of
/// them was dropped *and* no work in flight uses it. Usable from any thread.
///
/// Made by [`Runtime::host`](crate::Runtime::host), [`zeros`](crate::Runtime::zeros), [`upload`](crate::Runtime::upload),
/// [`zeros_on`](crate::Runtime::zeros_on), [`alloc`](crate::Runtime::alloc) and [`array`](crate::Runtime::array), and with the feature
/// `cuda` by those of `CudaGpu`: `alloc`, `zeros`, `upload`, `pinned` and `adopt`. Only arrays of one element type are copied to each other:
///
/// ```compile_fail
/// let rt = transload::Runtime::discover()?;
/// let (floats, bytes) = (rt.zeros::<f32>(4)?, rt.zeros::<u8>(16)?);
/// rt.download_into(&floats, vec![0_u8; 16]).wait()?;
/// # Ok::<(), transload::Error>(())
/// ```
pub struct Array<T> {
    /// A whole number of elements, aligned.
    pub(crate) raw: RawBuffer,
    /// Has queues for memory that the host cannot address.
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) elements: PhantomData<fn() -> T>,
}

impl<T: Pod> Array<T> {
    /// Returns a buffer's bytes as elements. The backend is that of their device.
    ///
    /// # Errors
    /// As for [`Runtime::array`](crate::Runtime::array).
    pub(crate) fn new(raw: RawBuffer, backend: Arc<dyn Backend>) -> Result<Self> {
        let (size, alignment) = (size_of::<T>(), align_of::<T>());
        let host = raw.host_address().map(|address| address.as_ptr().addr() as u64);
        let address = host.or(raw.device_address()).unwrap_or(raw.offset() as u64);
        if size > 0 && raw.len().is_multiple_of(size) && address.is_multiple_of(alignment as u64) {
            return Ok(Self { raw, backend, elements: PhantomData });
        }
        let name = std::any::type_name::<T>();
        let text = if size == 0 {
            format!("elements of `{name}` have no size; at least 1 byte is valid")
        } else if !raw.len().is_multiple_of(size) {
            format!(
                "{} bytes are no whole number of `{name}`; valid are multiples of {size} bytes",
                raw.len()
            )
        } else {
            format!(
                "elements of `{name}` cannot begin at {address:#x}; valid are multiples of {alignment} bytes"
            )
        };
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// Returns the bytes, shared.
    #[must_use]
    pub fn raw(&self) -> &RawBuffer {
        &self.raw
    }

    /// Returns the bytes.
    #[must_use]
    pub fn into_raw(self) -> RawBuffer {
        self.raw
    }

    /// Returns the vector that [`Runtime::host`](crate::Runtime::host) took over, without a copy. Never blocks.
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// let weights = rt.host(vec![1.0_f32, 2.0])?;
    /// let shared = weights.clone();
    /// let weights = weights.try_into_vec().unwrap_err(); // Given back: `shared` holds the memory too.
    /// drop(shared);
    /// assert_eq!(weights.try_into_vec().unwrap(), [1.0, 2.0]);
    /// # Ok::<(), transload::Error>(())
    /// ```
    ///
    /// # Errors
    /// The array, if it is no vector of `T` or only a part of one; if anything else holds the memory: a clone, a slice, or work in
    /// flight (after [`Runtime::drain`](crate::Runtime::drain) there is none); if a failed transfer damaged it; and if it is
    /// [registered](crate::RuntimeBuilder::registration) with a driver. [`read`](Self::read) copies it then.
    pub fn try_into_vec(self) -> Result<Vec<T>, Self> {
        let Self { raw, backend, .. } = self;
        CpuBackend::unwrap_vec(raw).map_err(|raw| Self { raw, backend, elements: PhantomData })
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len().checked_div(size_of::<T>()).unwrap_or(0)
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Returns the device and the kind of memory.
    #[must_use]
    pub fn place(&self) -> Place {
        self.raw.place()
    }

    /// Returns the device whose memory it is.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.raw.place().device
    }

    /// Returns the kind of memory.
    #[must_use]
    pub fn kind(&self) -> MemoryKind {
        self.raw.place().kind
    }

    /// Returns the address for devices, to pass to code that launches kernels by itself. The array must live until that work is
    /// complete, and `used_on` orders it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for host memory without one: it is neither pinned nor mapped.
    pub fn device_address(&self) -> Result<u64> {
        self.raw.device_address().ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("{} memory has no address for devices", self.place()))
        })
    }

    /// Returns a view of a range of elements; shares the allocation.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] if the range is reversed or leaves the array.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = range_within(&range, self.len(), "elements")?;
        let size = size_of::<T>();
        let raw = self.raw.slice(range.start * size..range.end * size)?;
        Ok(Self { raw, backend: Arc::clone(&self.backend), elements: PhantomData })
    }

    /// Returns the same bytes as elements of another type.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if they are no whole number of those, or not aligned for them, or if `U` has no size.
    pub fn cast<U: Pod>(&self) -> Result<Array<U>> {
        Array::new(self.raw.clone(), Arc::clone(&self.backend))
    }

    /// Opens the elements for reading by the host. Blocks until work that writes them is complete.
    ///
    /// # Errors
    /// As for [`RawBuffer::read`]: [`ErrorKind::Unsupported`] for memory that the host cannot address, which
    /// [`Runtime::download`](crate::Runtime::download) copies.
    pub fn read(&self) -> Result<ReadGuard<'_, T>> {
        ReadGuard::new(self.raw.read()?)
    }

    /// Like [`read`](Self::read), but returns [`ErrorKind::Busy`] instead of waiting.
    ///
    /// # Errors
    /// As for [`RawBuffer::try_read`].
    pub fn try_read(&self) -> Result<ReadGuard<'_, T>> {
        ReadGuard::new(self.raw.try_read()?)
    }

    /// Like [`read`](Self::read), but awaits such work.
    ///
    /// # Errors
    /// As for `read`.
    pub async fn read_async(&self) -> Result<ReadGuard<'_, T>> {
        ReadGuard::new(self.raw.read_async().await?)
    }

    /// Opens the elements for writing by the host. Blocks until work that uses them is complete.
    ///
    /// # Errors
    /// As for [`RawBuffer::write`].
    pub fn write(&self) -> Result<WriteGuard<'_, T>> {
        WriteGuard::new(self.raw.write()?)
    }

    /// Like [`write`](Self::write), but returns [`ErrorKind::Busy`] instead of waiting.
    ///
    /// # Errors
    /// As for [`RawBuffer::try_write`].
    pub fn try_write(&self) -> Result<WriteGuard<'_, T>> {
        WriteGuard::new(self.raw.try_write()?)
    }

    /// Like [`write`](Self::write), but awaits such work.
    ///
    /// # Errors
    /// As for `write`.
    pub async fn write_async(&self) -> Result<WriteGuard<'_, T>> {
        WriteGuard::new(self.raw.write_async().await?)
    }

    /// Sets all elements to `value`. Blocks until that is done: for memory that the host cannot address, by a queue of its device.
    /// `CudaStream::memset_async` enqueues a fill instead.
    ///
    /// ```
    /// let rt = transload::Runtime::discover()?;
    /// let array = rt.zeros::<f32>(3)?;
    /// array.slice(1..)?.fill(1.5)?;
    /// assert_eq!(*array.read()?, [0.0, 1.5, 1.5]);
    /// # Ok::<(), transload::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`write`](Self::write), and the driver's.
    pub fn fill(&self, value: T) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        if self.raw.host_address().is_some() {
            WriteGuard::new(self.raw.overwrite()?)?.fill(value);
            return Ok(());
        }
        fill(&*self.queue()?, &self.raw, bytemuck::bytes_of(&value))?.wait()
    }

    /// Copies by a queue of the array's device, and waits for it.
    fn copy_by_queue(&self, src: &RawBuffer, dst: &RawBuffer) -> Result<()> {
        submit(&*self.queue()?, &Operation::Copy { src, dst }, Timing::Off)?.wait()
    }

    fn queue(&self) -> Result<QueueLease> {
        self.backend.lease_queue(self.device(), StreamPriority::Normal, WorkloadType::Memory)
    }
}

impl<T: Pod> AsRef<RawBuffer> for Array<T> {
    fn as_ref(&self) -> &RawBuffer {
        self.raw()
    }
}

/// The methods block until their effect is in place. For memory that the host cannot address they use a queue of its device.
impl<T: Pod> Buffer<T> for Array<T> {
    fn raw(&self) -> &RawBuffer {
        &self.raw
    }

    fn fill(&self, value: T) -> Result<()> {
        Self::fill(self, value)
    }

    fn copy_from_host_at(&self, offset: usize, source: &[T]) -> Result<()> {
        let dst = slice_elements::<T>(&self.raw, offset, source.len())?;
        if dst.is_empty() {
            return Ok(());
        }
        if dst.host_address().is_some() {
            WriteGuard::new(dst.overwrite()?)?.copy_from_slice(source);
            return Ok(());
        }
        // SAFETY: the value is dropped at the end of this function and never cloned.
        let source = unsafe { borrow(source) };
        self.copy_by_queue(&source, &dst)
    }

    fn copy_to_host_at(&self, offset: usize, destination: &mut [T]) -> Result<()> {
        let src = slice_elements::<T>(&self.raw, offset, destination.len())?;
        if src.is_empty() {
            return Ok(());
        }
        if src.host_address().is_some() {
            destination.copy_from_slice(&ReadGuard::new(src.read()?)?);
            return Ok(());
        }
        // SAFETY: the value is dropped at the end of this function and never cloned.
        let destination = unsafe { borrow_mut(destination) };
        self.copy_by_queue(&src, &destination)
    }
}

impl<T> Clone for Array<T> {
    fn clone(&self) -> Self {
        Self { raw: self.raw.clone(), backend: Arc::clone(&self.backend), elements: PhantomData }
    }
}

impl<T> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array<{}>({:?})", std::any::type_name::<T>(), self.raw)
    }
}
