//! The error type: a kind for programs, whether a retry can help, and a message that says what would be
//! valid.

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc};

/// The result type of all crates of this workspace.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument that is never valid, such as a size of 0.
    InvalidArgument,
    /// An offset or a size that exceeds the buffer, or whose sum overflows; a size that exceeds the
    /// [largest allocation](crate::DeviceInfo::largest_allocation).
    OutOfRange,
    /// Source and destination overlap within one allocation.
    Overlap,
    /// No registered backend has the device, or the device does not exist.
    UnknownDevice,
    /// The device, driver or backend does not support this.
    Unsupported,
    /// The range is in use: a host view, a guard or a loan is open on it, or a view would have to wait. Or
    /// the stream is being captured into a graph.
    Busy,
    /// Not enough memory of the kind; see [`Error::memory_shortage`].
    OutOfMemory,
    /// No driver for the device family is installed.
    NoDriver,
    /// A driver is installed, but there is no device.
    NoDevice,
    /// The driver is too old.
    DriverTooOld,
    /// The installed driver lacks a function that this needs.
    MissingFunction,
    /// The device's context is unusable from now on; the message names the first cause.
    DeviceLost,
    /// Any other error of the driver or device.
    Device,
    /// Reading or writing a file failed.
    Io,
    /// Bytes read back differ from those sent: do not trust the path.
    Corrupted,
    /// A worker thread ended before its work was complete.
    Interrupted,
    /// Bytes to be read are invalid, since the operation that should have written them failed: see
    /// [`Error::cause`].
    SourceFailed,
}

/// Whether the same call can succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Retry {
    /// Not without other arguments, another device or a new process.
    Never,
    /// When work in flight is complete or a host view is closed.
    Later,
    /// When memory is freed.
    AfterFreeing,
}

/// How much memory was requested and how much was available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryShortage {
    /// Requested bytes.
    #[cfg_attr(feature = "serde", serde(rename = "requested_bytes"))]
    pub requested: u64,
    /// Free bytes at that time, if the driver reported them.
    #[cfg_attr(feature = "serde", serde(rename = "free_bytes"))]
    pub free: Option<u64>,
    /// Total bytes, if the driver reported them.
    #[cfg_attr(feature = "serde", serde(rename = "total_bytes"))]
    pub total: Option<u64>,
}

/// An error of this workspace. Cheap to clone.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    shortage: Option<MemoryShortage>,
    source: Option<Box<dyn StdError + Send + Sync>>,
    is_partial: bool,
}

impl Error {
    /// Creates an error with a message that says what was wrong and what would be valid.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Inner {
            kind,
            message: message.into(),
            shortage: None,
            source: None,
            is_partial: false,
        }))
    }

    /// Creates an error caused by another one.
    #[must_use]
    pub fn caused_by(
        kind: ErrorKind,
        message: impl Into<Cow<'static, str>>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        let (message, source) = (message.into(), Some(source.into()));
        Self(Arc::new(Inner { kind, message, shortage: None, source, is_partial: false }))
    }

    /// Creates an [`ErrorKind::OutOfMemory`] with its numbers.
    #[must_use]
    pub fn out_of_memory(place: crate::Place, shortage: MemoryShortage) -> Self {
        let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
        let MemoryShortage { requested, free, total } = shortage;
        let (free, total) = (known(free), known(total));
        let message =
            format!("out of {place} memory: {requested} bytes requested, {free} free of {total}").into();
        let kind = ErrorKind::OutOfMemory;
        Self(Arc::new(Inner { kind, message, shortage: Some(shortage), source: None, is_partial: false }))
    }

    /// Marks the error as that of an operation of which a part was done: what it writes may be damaged.
    #[cold]
    #[must_use]
    pub fn of_part(mut self) -> Self {
        if !self.is_partial() {
            if Arc::get_mut(&mut self.0).is_none() {
                self = Self::caused_by(self.kind(), "a part of the operation was done", self);
            }
            if let Some(inner) = Arc::get_mut(&mut self.0) {
                inner.is_partial = !crate::mutant!("core/partial-errors");
            }
        }
        self
    }

    /// Returns whether a part of the operation was done before it failed. It is complete.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.0.is_partial
    }

    /// Returns the kind of error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether the same call can succeed later.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self.0.kind {
            ErrorKind::Busy => Retry::Later,
            ErrorKind::OutOfMemory => Retry::AfterFreeing,
            _ => Retry::Never,
        }
    }

    /// Returns the cause if it is an error of another library, such as a driver's with its code. Its message
    /// is part of this error's own, so [`source`](StdError::source) continues after it.
    #[must_use]
    pub fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }

    /// Returns the numbers of an [`ErrorKind::OutOfMemory`], or of the one that caused this error.
    #[must_use]
    pub fn memory_shortage(&self) -> Option<MemoryShortage> {
        let cause = || self.cause()?.downcast_ref::<Self>()?.memory_shortage();
        self.0.shortage.or_else(cause)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match &self.0.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // Our message contains the cause's, so the chain continues after it.
        self.0.source.as_ref().and_then(|source| source.source())
    }
}
