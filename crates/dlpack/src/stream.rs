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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_read_as_the_standard_says() {
        let of = ConsumerStream::from_protocol;
        assert_eq!(of(None).unwrap(), ConsumerStream::LegacyDefault);
        assert_eq!(of(Some(1)).unwrap(), ConsumerStream::LegacyDefault);
        assert_eq!(of(Some(2)).unwrap(), ConsumerStream::PerThreadDefault);
        assert_eq!(of(Some(0x5000)).unwrap(), ConsumerStream::Handle(0x5000));
        assert_eq!(of(Some(-1)).unwrap(), ConsumerStream::NoSync);
        for wrong in [0, -2, i64::MIN] {
            let error = of(Some(wrong)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("valid are None or 1"), "{error}");
        }
    }
}
