//! Typed buffers of any kind of memory behind one object-safe trait.

use crate::{DeviceId, Error, ErrorKind, MemoryKind, Pod, RawBuffer, Result};

/// `len` elements of `T` somewhere. Generic code runs on host, device and unified buffers alike.
///
/// The methods here block until their effect is in place, in the order of everything enqueued before on the buffer. For
/// asynchronous work hand [`raw`](Self::raw) to the transfer manager or to [`submit`](crate::submit).
pub trait Buffer<T: Pod>: Send + Sync {
    /// The bytes behind it, shared.
    fn raw(&self) -> &RawBuffer;

    /// Elements.
    fn len(&self) -> usize {
        self.raw().len().checked_div(size_of::<T>()).unwrap_or(0)
    }

    /// Whether it has no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whose memory it is.
    fn device(&self) -> DeviceId {
        self.raw().place().device
    }

    /// What kind of memory it is.
    fn kind(&self) -> MemoryKind {
        self.raw().place().kind
    }

    /// Sets every element.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) where a host view is open; the device's errors.
    fn fill(&self, value: T) -> Result<()>;

    /// Copies from host memory; `source` must have exactly [`len`](Self::len) elements.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for another length, and as for `fill`.
    fn copy_from_host(&self, source: &[T]) -> Result<()>;

    /// Copies to host memory; `destination` must have exactly [`len`](Self::len) elements.
    ///
    /// # Errors
    /// As for `copy_from_host`.
    fn copy_to_host(&self, destination: &mut [T]) -> Result<()>;
}

/// The bytes of `len` elements of `T`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] where that is 0 or overflows.
pub fn bytes_of_elements<T>(len: usize) -> Result<usize> {
    let size = size_of::<T>();
    size.checked_mul(len).filter(|bytes| *bytes > 0).ok_or_else(|| {
        let text = format!("{len} elements of {size} bytes are no valid size: 1 to {} bytes are", usize::MAX);
        Error::new(ErrorKind::InvalidArgument, text)
    })
}

/// Refuses a host slice that has not as many elements as the buffer it is copied from or to.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] naming both lengths.
pub fn check_same_len(buffer: usize, host: usize) -> Result<()> {
    if buffer == host {
        return Ok(());
    }
    let text = format!("the host slice has {host} elements; it must have the buffer's {buffer}");
    Err(Error::new(ErrorKind::InvalidArgument, text))
}
