//! Typed buffers of host memory.

use std::{fmt, marker::PhantomData};

use transload_core::{
    Backend, Buffer, DeviceId, Error, ErrorKind, MemoryKind, Pod, RawBuffer, ReadGuard, Result, WriteGuard,
    slice_elements,
};

use crate::CpuBackend;

/// `len` elements of `T` in host memory. Clones share the bytes. Usable from any thread.
///
/// ```
/// use transload_backend_cpu::{CpuBackend, CpuBuffer};
/// use transload_core::Buffer;
///
/// let backend = CpuBackend::new()?;
/// let buffer = CpuBuffer::<u32>::new(&backend, 4)?;
/// buffer.fill(7)?;
/// buffer.write()?[0] = 1;
/// assert_eq!(*buffer.read()?, [1, 7, 7, 7]);
/// # Ok::<(), transload_core::Error>(())
/// ```
pub struct CpuBuffer<T: Pod> {
    raw: RawBuffer,
    elements: PhantomData<fn() -> T>,
}

impl<T: Pod> CpuBuffer<T> {
    /// Allocates `len` elements (at least 1), all bytes zero.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a length of 0, a `T` without size or one aligned to more than 64 bytes;
    /// [`ErrorKind::OutOfRange`] if the size in bytes overflows; [`ErrorKind::OutOfMemory`].
    pub fn new(backend: &CpuBackend, len: usize) -> Result<Self> {
        check_element::<T>()?;
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| {
            let text = format!("{len} elements of {} bytes are more than can be counted", size_of::<T>());
            Error::new(ErrorKind::OutOfRange, text)
        })?;
        Self::from_raw(backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes)?)
    }

    /// Allocates a copy of a slice.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn from_slice(backend: &CpuBackend, source: &[T]) -> Result<Self> {
        let buffer = Self::new(backend, source.len())?;
        buffer.copy_from_host(source)?;
        Ok(buffer)
    }

    /// Wraps a buffer that the host can address, which may be pinned, mapped or wrapped memory.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the length is no multiple of the element size, the address is not aligned for
    /// `T`, or `T` has no size; [`ErrorKind::Unsupported`] if the host cannot address the memory.
    pub fn from_raw(raw: RawBuffer) -> Result<Self> {
        check_element::<T>()?;
        let Some(address) = raw.host_address() else {
            let text =
                format!("the host cannot address {} memory; transfer it to a host buffer", raw.place());
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let (size, alignment) = (size_of::<T>(), align_of::<T>());
        if !raw.len().is_multiple_of(size) || !address.as_ptr().addr().is_multiple_of(alignment) {
            let text = format!(
                "{} bytes at {address:p} are no whole number of elements of {size} bytes aligned to {alignment}",
                raw.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(Self { raw, elements: PhantomData })
    }

    /// Opens a view for reading. Blocks until operations that write the elements are complete.
    ///
    /// # Errors
    /// Those of [`RawBuffer::read`].
    pub fn read(&self) -> Result<ReadGuard<'_, T>> {
        ReadGuard::new(self.raw.read()?)
    }

    /// Like [`read`](Self::read), but returns [`ErrorKind::Busy`] instead of blocking.
    ///
    /// # Errors
    /// Those of [`RawBuffer::try_read`].
    pub fn try_read(&self) -> Result<ReadGuard<'_, T>> {
        ReadGuard::new(self.raw.try_read()?)
    }

    /// Opens a view for writing. Blocks until operations that use the elements are complete.
    ///
    /// # Errors
    /// Those of [`RawBuffer::write`].
    pub fn write(&self) -> Result<WriteGuard<'_, T>> {
        WriteGuard::new(self.raw.write()?)
    }

    /// Like [`write`](Self::write), but returns [`ErrorKind::Busy`] instead of blocking.
    ///
    /// # Errors
    /// Those of [`RawBuffer::try_write`].
    pub fn try_write(&self) -> Result<WriteGuard<'_, T>> {
        WriteGuard::new(self.raw.try_write()?)
    }
}

fn check_element<T>() -> Result<()> {
    const MOST: usize = 64;
    if size_of::<T>() == 0 {
        return Err(Error::new(ErrorKind::InvalidArgument, "elements of 0 bytes have nothing to transfer"));
    }
    if align_of::<T>() > MOST {
        let text = format!("elements aligned to {} bytes; valid are at most {MOST}", align_of::<T>());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok(())
}

impl<T: Pod> AsRef<RawBuffer> for CpuBuffer<T> {
    fn as_ref(&self) -> &RawBuffer {
        self.raw()
    }
}

impl<T: Pod> Buffer<T> for CpuBuffer<T> {
    fn raw(&self) -> &RawBuffer {
        &self.raw
    }

    fn fill(&self, value: T) -> Result<()> {
        WriteGuard::new(self.raw.overwrite()?)?.fill(value);
        Ok(())
    }

    fn copy_from_host_at(&self, offset: usize, source: &[T]) -> Result<()> {
        let part = slice_elements::<T>(&self.raw, offset, source.len())?;
        WriteGuard::new(part.overwrite()?)?.copy_from_slice(source);
        Ok(())
    }

    fn copy_to_host_at(&self, offset: usize, destination: &mut [T]) -> Result<()> {
        let part = slice_elements::<T>(&self.raw, offset, destination.len())?;
        destination.copy_from_slice(&ReadGuard::new(part.read()?)?);
        Ok(())
    }
}

impl<T: Pod> Clone for CpuBuffer<T> {
    fn clone(&self) -> Self {
        Self { raw: self.raw.clone(), elements: PhantomData }
    }
}

impl<T: Pod> fmt::Debug for CpuBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuBuffer<{}>({:?})", std::any::type_name::<T>(), self.raw)
    }
}
