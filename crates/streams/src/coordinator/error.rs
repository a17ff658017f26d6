//! Why the coordinator refused: a cycle, a stream that it does not know, no stream at all, or an error of a stream's own.

use std::{error::Error as StdError, fmt};

use transload_core::{DeviceId, Error, ErrorKind, TimelineId};

use crate::CudaStream;

/// Why the coordinator refused. Converts into core's [`Error`]; there [`Error::cause`] gives it back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// The dependency would close a cycle; nothing was enqueued.
    Cycle {
        /// Each stream waits for the next one, the last for the first. The first is the one that was to wait. A stream that
        /// was to wait for itself is alone in it.
        cycle: Vec<TimelineId>,
    },
    /// The stream is not registered.
    NotRegistered {
        /// The stream.
        stream: TimelineId,
        /// Its device.
        device: DeviceId,
    },
    /// There is no stream to do this with.
    NoStreams,
    /// An error of a stream or its driver.
    Stream(Error),
}

impl CoordinatorError {
    pub(super) fn unknown(stream: &CudaStream) -> Self {
        Self::NotRegistered { stream: stream.id(), device: stream.device() }
    }

    /// The cycle, where that is what was refused.
    #[must_use]
    pub fn cycle(&self) -> Option<&[TimelineId]> {
        match self {
            Self::Cycle { cycle } => Some(cycle),
            _ => None,
        }
    }
}

impl fmt::Display for CoordinatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cycle { cycle } => {
                f.write_str("the dependency would close a cycle: ")?;
                for stream in cycle {
                    write!(f, "{stream:?} after ")?;
                }
                if let Some(first) = cycle.first() {
                    write!(f, "{first:?}")?;
                }
                f.write_str("; valid once one of these waits is over, or as a barrier")
            }
            Self::NotRegistered { stream, device } => {
                write!(f, "{stream:?} of {device} is not registered; register it with the coordinator first")
            }
            Self::NoStreams => f.write_str("there is no stream; register at least one, or name one"),
            Self::Stream(error) => error.fmt(f),
        }
    }
}

impl StdError for CoordinatorError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            // Its text is this error's own, so what follows it in the chain comes next.
            Self::Stream(error) => error.source(),
            _ => None,
        }
    }
}

impl From<Error> for CoordinatorError {
    fn from(error: Error) -> Self {
        Self::Stream(error)
    }
}

impl From<CoordinatorError> for Error {
    fn from(error: CoordinatorError) -> Self {
        match error {
            CoordinatorError::Stream(error) => error,
            refused => Self::caused_by(ErrorKind::InvalidArgument, "the coordinator refused", refused),
        }
    }
}
