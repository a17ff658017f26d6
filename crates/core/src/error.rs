//! One error type with a kind to act on, whether a retry can help, and a text that says what would be valid.

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc};

/// The result of this workspace's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for programs to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument that can never be right, such as a size of 0.
    InvalidArgument,
    /// An offset or a size that leaves the buffer, or whose sum overflows.
    OutOfRange,
    /// Source and destination overlap within one allocation.
    Overlap,
    /// No registered backend knows the device, or the device does not exist.
    UnknownDevice,
    /// The device, driver or backend cannot do this at all.
    Unsupported,
    /// The range is in use: a host view is open on it, or would have to wait. Or the stream is, by a capture into a graph.
    Busy,
    /// Not enough memory of the kind; see [`Error::memory_shortage`].
    OutOfMemory,
    /// There is no driver for the device family.
    NoDriver,
    /// There is a driver, but no device.
    NoDevice,
    /// The driver is too old.
    DriverTooOld,
    /// The running driver lacks a function that this needs.
    MissingFunction,
    /// The device's context is unusable from here on; the text names the first cause.
    DeviceLost,
    /// The driver or device reported any other error.
    Device,
    /// Reading or writing a file.
    Io,
    /// Bytes that were read back are not those that were sent: the path must not be trusted.
    Corrupted,
    /// A worker thread ended before its work was done.
    Interrupted,
    /// Bytes that were read are not valid, since the operation that should have written them failed: with
    /// [`Error::cause`].
    SourceFailed,
}

/// Whether the same call can succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// Not without other arguments, another device or a new process.
    Never,
    /// Once work in flight is done or a host view is closed.
    Later,
    /// Once memory is freed.
    AfterFreeing,
}

/// How much memory was asked for and how much there was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShortage {
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes free at that moment, where the driver could tell.
    pub free: Option<u64>,
    /// Bytes in all, where the driver could tell.
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
}

impl Error {
    /// An error with a text that says what was wrong and what would be valid.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Inner { kind, message: message.into(), shortage: None, source: None }))
    }

    /// An error caused by another one.
    #[must_use]
    pub fn caused_by(
        kind: ErrorKind,
        message: impl Into<Cow<'static, str>>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        let (message, source) = (message.into(), Some(source.into()));
        Self(Arc::new(Inner { kind, message, shortage: None, source }))
    }

    /// [`ErrorKind::OutOfMemory`] with its numbers.
    #[must_use]
    pub fn out_of_memory(place: crate::Place, shortage: MemoryShortage) -> Self {
        let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
        let MemoryShortage { requested, free, total } = shortage;
        let (free, total) = (known(free), known(total));
        let message =
            format!("out of {place} memory: {requested} bytes requested, {free} free of {total}").into();
        let kind = ErrorKind::OutOfMemory;
        Self(Arc::new(Inner { kind, message, shortage: Some(shortage), source: None }))
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call can succeed later.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self.0.kind {
            ErrorKind::Busy => Retry::Later,
            ErrorKind::OutOfMemory => Retry::AfterFreeing,
            _ => Retry::Never,
        }
    }

    /// What caused it, where that is an error of another library: a driver's with its code, say. Its text is part of this
    /// error's own, so [`source`](StdError::source) goes on behind it.
    #[must_use]
    pub fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }

    /// The numbers of an [`ErrorKind::OutOfMemory`].
    #[must_use]
    pub fn memory_shortage(&self) -> Option<MemoryShortage> {
        self.0.shortage
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
        // Its text is part of ours, so what follows it in the chain comes next.
        self.0.source.as_ref().and_then(|source| source.source())
    }
}
