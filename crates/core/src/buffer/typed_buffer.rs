//! Typed buffers: one trait, usable as a trait object, for all kinds of memory.

use crate::{DeviceId, Error, ErrorKind, MemoryKind, Pod, RawBuffer, Result, range_within};

/// `len` elements of `T` in some memory. Generic code works with host, device and unified buffers alike.
///
/// The methods here block until they have taken effect, after everything enqueued before on the buffer. For
/// asynchronous work pass [`raw`](Self::raw) to the transfer manager or to [`submit`](crate::submit).
pub trait Buffer<T: Pod>: Send + Sync {
    /// Returns the underlying bytes, shared.
    fn raw(&self) -> &RawBuffer;

    /// Returns the number of elements.
    fn len(&self) -> usize {
        self.raw().len().checked_div(size_of::<T>()).unwrap_or(0)
    }

    /// Returns whether it has no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns its device.
    fn device(&self) -> DeviceId {
        self.raw().place().device
    }

    /// Returns its kind of memory.
    fn kind(&self) -> MemoryKind {
        self.raw().place().kind
    }

    /// Sets every element.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if a host view is open; the device's errors.
    fn fill(&self, value: T) -> Result<()>;

    /// Copies from host memory to the first elements. If `source` is shorter than the buffer, the others keep their
    /// values.
    ///
    /// # Errors
    /// Like [`copy_from_host_at`](Self::copy_from_host_at).
    fn copy_from_host(&self, source: &[T]) -> Result<()> {
        self.copy_from_host_at(0, source)
    }

    /// Copies the first elements to host memory, as many as `destination` has.
    ///
    /// # Errors
    /// Like [`copy_from_host_at`](Self::copy_from_host_at).
    fn copy_to_host(&self, destination: &mut [T]) -> Result<()> {
        self.copy_to_host_at(0, destination)
    }

    /// Copies from host memory to the elements from `offset` on. The others keep their values.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange) if `source` does not fit from there on; nothing is
    /// copied then. Those of [`fill`](Self::fill).
    fn copy_from_host_at(&self, offset: usize, source: &[T]) -> Result<()>;

    /// Copies the elements from `offset` on to host memory, as many as `destination` has.
    ///
    /// # Errors
    /// Like [`copy_from_host_at`](Self::copy_from_host_at).
    fn copy_to_host_at(&self, offset: usize, destination: &mut [T]) -> Result<()>;
}

/// Returns the size of `len` elements of `T` in bytes.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if that is 0 or overflows.
pub fn bytes_of_elements<T>(len: usize) -> Result<usize> {
    let size = size_of::<T>();
    size.checked_mul(len).filter(|bytes| *bytes > 0).ok_or_else(|| {
        let text = match usize::MAX.checked_div(size) {
            None => "elements without a size have no memory; expected a type of at least 1 byte".to_owned(),
            Some(most) => format!("{len} elements of {size} bytes; expected 1 to {most} elements"),
        };
        Error::new(ErrorKind::InvalidArgument, text)
    })
}

/// Returns the part of a buffer that has `count` elements of `T` from element `offset` on.
///
/// # Errors
/// [`ErrorKind::OutOfRange`] if the buffer has fewer elements.
pub fn slice_elements<T>(raw: &RawBuffer, offset: usize, count: usize) -> Result<RawBuffer> {
    let size = size_of::<T>();
    let len = raw.len().checked_div(size).unwrap_or(0);
    let range = range_within(&(offset..offset.saturating_add(count)), len, "elements")?;
    raw.slice(range.start * size..range.end * size)
}

/// Checks that a host slice has as many elements as the buffer that it is copied from or to.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] naming both lengths.
pub fn check_same_len(buffer: usize, host: usize) -> Result<()> {
    if buffer == host {
        return Ok(());
    }
    let text = format!("the host slice has {host} elements, expected the {buffer} of the buffer");
    Err(Error::new(ErrorKind::InvalidArgument, text))
}
