//! Reports of streams.

use std::{fmt, time::Duration};

use transload_core::{Error, TransferMethod, TransferReport};

/// What a stream moved, and how.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct StreamReport {
    /// Bytes that are in place, or that the sink has taken.
    pub bytes: u64,
    /// Wall time from the first poll to the end, including the source's or sink's.
    #[cfg_attr(feature = "serde", serde(rename = "wall_seconds", with = "transload_core::serde_seconds"))]
    pub wall: Duration,
    /// Number of staging buffers that were allocated; 0 if host memory was read or written in place.
    #[cfg_attr(feature = "serde", serde(default))]
    pub buffers: usize,
    /// Bytes of all staging buffers.
    #[cfg_attr(feature = "serde", serde(default))]
    pub staging_bytes: u64,
    /// The transfers by method; none if host memory was read or written in place.
    pub methods: Vec<MethodCount>,
    /// Whether a device is simulated.
    pub simulated: bool,
}

/// The transfers of one method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MethodCount {
    /// Method that moved the bytes.
    pub method: TransferMethod,
    /// Number of transfers.
    pub chunks: u64,
    /// Bytes transferred; of a load including gaps between tensors.
    pub bytes: u64,
}

impl MethodCount {
    /// Adds a transfer to the counts.
    pub(crate) fn add(counts: &mut Vec<Self>, report: &TransferReport) {
        match counts.iter_mut().find(|count| count.method == report.method) {
            Some(count) => {
                count.chunks += 1;
                count.bytes += report.bytes;
            }
            None => counts.push(Self { method: report.method, chunks: 1, bytes: report.bytes }),
        }
    }
}

impl StreamReport {
    pub(super) fn count(&mut self, report: &TransferReport) {
        MethodCount::add(&mut self.methods, report);
        self.simulated |= report.simulated;
    }
}

impl fmt::Display for StreamReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, wall, methods, simulated, .. } = self;
        let rate = *bytes as f64 / wall.as_secs_f64().max(1e-9) / 1e9;
        write!(f, "{bytes} bytes in {wall:.1?} of wall clock, {rate:.2} GB/s")?;
        methods.iter().try_for_each(|count| write!(f, ", {count}"))?;
        f.write_str(if *simulated { " (simulated)" } else { "" })
    }
}

impl fmt::Display for MethodCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}", self.chunks, self.method)
    }
}

/// Why a stream ended early, and how far it got.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamError {
    /// Bytes at the beginning of the destination that are in place, or that the sink has taken.
    pub bytes: u64,
    /// The error of the source, the sink, an allocation or a transfer.
    pub cause: Error,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stream ended after {} bytes: {}", self.bytes, self.cause)
    }
}

impl std::error::Error for StreamError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The message contains the cause's, so the chain continues after it.
        self.cause.source()
    }
}

impl From<StreamError> for Error {
    fn from(error: StreamError) -> Self {
        let StreamError { bytes, cause } = error;
        Error::caused_by(cause.kind(), format!("the stream ended after {bytes} bytes"), cause)
    }
}
