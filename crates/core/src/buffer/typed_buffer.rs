//! Typed buffers: one trait, usable as a trait object, for all kinds of memory.

use crate::{DeviceId, Error, ErrorKind, MemoryKind, Pod, RawBuffer, Result};

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

    /// Copies from host memory; `source` must have exactly [`len`](Self::len) elements.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for another length, and those of
    /// `fill`.
    fn copy_from_host(&self, source: &[T]) -> Result<()>;

    /// Copies to host memory; `destination` must have exactly [`len`](Self::len) elements.
    ///
    /// # Errors
    /// Like `copy_from_host`.
    fn copy_to_host(&self, destination: &mut [T]) -> Result<()>;
}

/// Returns the size of `len` elements of `T` in bytes.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if that is 0 or overflows.
pub fn bytes_of_elements<T>(len: usize) -> Result<usize> {
    let size = size_of::<T>();
    size.checked_mul(len).filter(|bytes| *bytes > 0).ok_or_else(|| {
        let text = format!(
            "invalid size: {len} elements of {size} bytes; expected 1 to {} bytes in total",
            usize::MAX
        );
        Error::new(ErrorKind::InvalidArgument, text)
    })
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
