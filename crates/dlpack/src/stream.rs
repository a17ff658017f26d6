//! The stream that a consumer names, as the Python array API standard encodes it.

use transload_core::{Error, ErrorKind, Result};

/// Where a consumer of CUDA memory will use it: what it passes as `stream` to `__dlpack__`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConsumerStream {
    /// On the legacy default stream: `None` or 1.
    LegacyDefault,
    /// On the calling thread's default stream: 2.
    PerThreadDefault,
    /// On the stream with this handle.
    Handle(usize),
    /// Nobody is to make anything wait: -1. The consumer sees to the order itself.
    NoSync,
}

impl ConsumerStream {
    /// From the argument `stream` of `__dlpack__` for a CUDA tensor.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0, which the standard does not allow as it could mean either default stream, and
    /// for numbers below -1.
    pub fn from_protocol(stream: Option<i64>) -> Result<Self> {
        match stream {
            None | Some(1) => Ok(Self::LegacyDefault),
            Some(2) => Ok(Self::PerThreadDefault),
            Some(-1) => Ok(Self::NoSync),
            Some(handle) if handle > 2 => {
                usize::try_from(handle).map(Self::Handle).map_err(|_| refused(handle))
            }
            Some(other) => Err(refused(other)),
        }
    }
}

fn refused(stream: i64) -> Error {
    let text = format!(
        "{stream} names no CUDA stream in DLPack; valid are None or 1 (legacy default), 2 (per-thread default), a handle \
         above 2, and -1 (no synchronisation); 0 is ambiguous and not allowed"
    );
    Error::new(ErrorKind::InvalidArgument, text)
}
