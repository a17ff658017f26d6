//! How many copies went: a report of all, or an error that says which failed.

use std::{fmt, time::Duration};

use transload_core::{Error, ErrorKind, Retry, TransferReport};

/// The report of many copies.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CopyManyReport {
    /// Number of pairs, with those of 0 bytes.
    pub pairs: usize,
    /// Bytes moved.
    pub bytes: u64,
    /// Host time from the beginning of submission until the completion of all was observed.
    #[cfg_attr(feature = "serde", serde(rename = "elapsed_seconds", with = "transload_core::serde_seconds"))]
    pub elapsed: Duration,
    /// A report for each source and destination place. Its [`chunks`](TransferReport::chunks) are the pairs of more than 0 bytes, and no
    /// time is predicted. If they were copied one by one, it has the method of the first and no times.
    pub groups: Vec<TransferReport>,
}

/// Prints the number of pairs, bytes, time and rate, and whether a software driver copied any. The alternate form (`{:#}`) adds a line for each group.
impl fmt::Display for CopyManyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pairs, bytes, elapsed, groups } = self;
        write!(f, "{pairs} pairs, {bytes} bytes in {elapsed:.1?}")?;
        let rate = *bytes as f64 / elapsed.as_secs_f64() / 1e9;
        if rate.is_finite() && rate >= 0.01 {
            write!(f, ", {rate:.2} GB/s")?;
        }
        if groups.iter().any(|group| group.simulated) {
            f.write_str(" (simulated)")?;
        }
        if f.alternate() {
            groups.iter().try_for_each(|group| write!(f, "\n  {} pairs: {group}", group.chunks))?;
        }
        Ok(())
    }
}

/// Why some of many copies failed. Pairs that are not listed were copied, unless the list was refused as a whole. `?` makes it an
/// [`Error`] of the same kind, which names the pairs.
///
/// ```
/// # use transload_backend_cpu::CpuBackend;
/// # use transload_transfer::CrossBackendTransferManager;
/// use transload_core::{Access, DeviceId, ErrorKind, MemoryKind, Retry};
///
/// # let manager = CrossBackendTransferManager::new();
/// # manager.register_backend(CpuBackend::new()?)?;
/// let pool = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 16)?;
/// let pairs = [(pool.slice(..8)?, pool.slice(8..)?)];
/// let guard = pool.try_lock_range(Access::Write)?; // Keeps all work away from the bytes.
/// let failed = manager.copy_many(&pairs).wait().unwrap_err();
/// assert_eq!((failed.kind(), failed.retry(), &failed.pairs[..]), (ErrorKind::Busy, Retry::Later, &[0][..]));
/// drop(guard);
/// manager.copy_many(&pairs).wait()?;
/// # Ok::<(), transload_core::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CopyManyError {
    /// The first error.
    pub error: Error,
    /// Indices of the pairs that were not copied, or of which that is not known, ascending: all of a group that failed as one, except
    /// those of 0 bytes. Of a list that was refused as a whole, those that are invalid; nothing was copied then.
    pub pairs: Vec<usize>,
    /// Whether the list was refused as a whole, of which the error names the pairs.
    pub(super) is_refused: bool,
}

impl CopyManyError {
    /// Returns the kind of the first error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// Returns whether the same call can succeed later, by the first error.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.error.retry()
    }

    /// Returns the pairs that the error does not name itself.
    fn unnamed(&self) -> &[usize] {
        if self.is_refused { &[] } else { &self.pairs }
    }
}

impl fmt::Display for CopyManyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unnamed() {
            all @ [first, .., last] => {
                write!(f, "{} pairs from {first} to {last} failed: {}", all.len(), self.error)
            }
            [one] => write!(f, "pair {one} failed: {}", self.error),
            [] => self.error.fmt(f),
        }
    }
}

impl std::error::Error for CopyManyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<CopyManyError> for Error {
    fn from(failed: CopyManyError) -> Self {
        let text = match failed.unnamed() {
            [first, .., last] => format!("{} pairs from {first} to {last} failed", failed.pairs.len()),
            [one] => format!("pair {one} failed"),
            [] => return failed.error,
        };
        Self::caused_by(failed.error.kind(), text, failed.error)
    }
}
