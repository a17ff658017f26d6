//! Exit codes and failures.

use std::{fmt, process::ExitCode};

use transload::{Error, ErrorKind};

/// The `--help` text about exit codes.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done; copy has verified the bytes, load where it was asked to
  1  verification failed: the bytes that came back differ
  2  bad usage or input: arguments, or a file that is missing, empty, no regular file or not valid
  3  a device or its driver is not available, or failed
  4  out of memory
  5  reading the file failed, it changed while it was read, or the result cannot be written

Results go to stdout, progress and errors to stderr. Nothing is printed to stdout unless the exit code is 0.
`trace` exits with its program's code; with --json, the object follows the program's own output, whatever its exit code.
The CUDA driver is looked for where TRANSLOAD_CUDA_DRIVER says, else under its usual names.";

/// The exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Success = 0,
    Differs = 1,
    Input = 2,
    Device = 3,
    Memory = 4,
    Io = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A failure of the command: an error whose message names valid input, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) error: anyhow::Error,
}

impl Failure {
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, error: anyhow::Error::msg(text.into()) }
    }

    /// A failure of `what`, caused by another error.
    pub(crate) fn caused_by(exit: Exit, what: impl Into<String>, cause: impl Into<anyhow::Error>) -> Self {
        Self { exit, error: cause.into() }.during(what)
    }

    /// Prefixes the message with the operation.
    pub(crate) fn during(self, what: impl Into<String>) -> Self {
        Self { exit: self.exit, error: self.error.context(what.into()) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::InvalidArgument
            | ErrorKind::OutOfRange
            | ErrorKind::Overlap
            | ErrorKind::Unsupported => Exit::Input,
            ErrorKind::OutOfMemory => Exit::Memory,
            ErrorKind::Io => Exit::Io,
            ErrorKind::Corrupted => Exit::Differs,
            _ => Exit::Device,
        };
        Self { exit, error: error.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}
