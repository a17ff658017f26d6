//! Streams of consumers, encoded as in the Python array API standard.

use transload_core::{Error, ErrorKind, Result};

/// The stream on which a consumer will use CUDA memory: its `stream` argument of `__dlpack__`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConsumerStream {
    /// The legacy default stream: `None` or 1.
    LegacyDefault,
    /// The calling thread's default stream: 2.
    PerThreadDefault,
    /// A stream handle.
    Handle(usize),
    /// No synchronisation: -1. The consumer is responsible for the order.
    NoSync,
}

impl ConsumerStream {
    /// Decodes the argument `stream` of `__dlpack__` for a CUDA tensor.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for numbers below -1, and for 0, which the standard forbids because either
    /// default stream could be meant.
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
        "{stream} is not a DLPack stream; valid: None or 1 (legacy default), 2 (per-thread default), a handle \
         above 2, and -1 (no synchronisation); 0 is ambiguous and not allowed"
    );
    Error::new(ErrorKind::InvalidArgument, text)
}
