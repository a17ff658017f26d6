//! The report of a load.

use std::{fmt, time::Duration};

use transload_core::{MemoryKind, Place};

use crate::io::MethodCount;

/// Sizes, methods and times of a load. Times are wall times.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LoadReport {
    /// Place of the tensors.
    pub place: Place,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of allocations that hold them.
    pub segments: usize,
    /// Number of chunks. Each was one transfer, unless the file was read in place.
    pub chunks: u64,
    /// Number of threads that read the file.
    #[cfg_attr(feature = "serde", serde(default))]
    pub readers: usize,
    /// Number of staging buffers that were allocated; 0 if the file was read in place.
    pub buffers: usize,
    /// Size of a staging buffer in bytes.
    pub buffer_bytes: usize,
    /// Kind of memory of the staging buffers.
    pub staging: Option<MemoryKind>,
    /// Time to read the header and to allocate the first staging buffer; on first use, also to initialise the device. The memory of the
    /// tensors is allocated while the first chunks are read.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "preparing_seconds", with = "transload_core::serde_seconds")
    )]
    pub preparing: Duration,
    /// Time from the call until the last byte was in place, including `preparing` and reading the file.
    #[cfg_attr(feature = "serde", serde(rename = "wall_seconds", with = "transload_core::serde_seconds"))]
    pub wall: Duration,
    /// Time to read back and compare, if requested; not part of `wall`.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "verifying_seconds", with = "transload_core::serde_seconds", default)
    )]
    pub verifying: Option<Duration>,
    /// The transfers by method.
    pub methods: Vec<MethodCount>,
    /// Whether the device is simulated.
    pub simulated: bool,
}

impl LoadReport {
    /// Returns the bytes of tensors per second of [`wall`](Self::wall).
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// Returns the time from the first byte read until the last byte in place.
    #[must_use]
    pub fn moving(&self) -> Duration {
        self.wall.saturating_sub(self.preparing)
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, bytes, tensors, wall, .. } = self;
        let rate = self.bytes_per_second() / 1e9;
        write!(
            f,
            "{tensors} tensors, {bytes} bytes, to {place} in {wall:.1?} of wall clock, {rate:.2} GB/s"
        )?;
        self.methods.iter().try_for_each(|count| write!(f, ", {count}"))?;
        if let Some(verifying) = self.verifying {
            write!(f, "; read back and found equal in {verifying:.1?}")?;
        }
        if self.simulated {
            f.write_str(" (simulated)")?;
        }
        Ok(())
    }
}
