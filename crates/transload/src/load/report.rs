//! How a load went.

use std::{fmt, time::Duration};

use transload_core::{MemoryKind, Place, TransferMethod, TransferReport};

/// What was loaded, by which methods, and how long it took. Times are the host's: see each.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LoadReport {
    /// Where the tensors are.
    pub place: Place,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// How many tensors.
    pub tensors: usize,
    /// How many allocations hold them.
    pub segments: usize,
    /// How many pieces they were sent in: as many transfers, but where the file was read straight into the host's memory.
    pub chunks: u64,
    /// How many buffers the ring had; 0 where the file was read straight to its place.
    pub buffers: usize,
    /// The size of each.
    pub buffer_bytes: usize,
    /// The kind of their memory.
    pub staging: Option<MemoryKind>,
    /// ChunkRead the header, allocating the tensors' memory and the ring; on first use also the device's own start.
    pub preparing: Duration,
    /// From the call until the last byte was in place, `preparing` and the file's reading included.
    pub wall: Duration,
    /// ChunkRead back and comparing, where that was asked for; in no other time.
    pub verifying: Option<Duration>,
    /// The transfers by method.
    pub methods: Vec<MethodCount>,
    /// Whether a software driver played the device.
    pub simulated: bool,
}

/// The transfers of one method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MethodCount {
    /// Which.
    pub method: TransferMethod,
    /// How many.
    pub chunks: u64,
    /// Their bytes, gaps between tensors included.
    pub bytes: u64,
}

impl LoadReport {
    /// Bytes of tensors per second of [`wall`](Self::wall).
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// From the first byte read until the last in place.
    #[must_use]
    pub fn moving(&self) -> Duration {
        self.wall.saturating_sub(self.preparing)
    }

    pub(super) fn count(&mut self, report: &TransferReport) {
        self.chunks += 1;
        let found = self.methods.iter_mut().find(|count| count.method == report.method);
        if let Some(count) = found {
            count.chunks += 1;
            count.bytes += report.bytes;
        } else {
            self.methods.push(MethodCount { method: report.method, chunks: 1, bytes: report.bytes });
        }
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
        for MethodCount { method, chunks, .. } in &self.methods {
            write!(f, ", {chunks} × {method}")?;
        }
        if let Some(verifying) = self.verifying {
            write!(f, "; read back and found equal in {verifying:.1?}")?;
        }
        if self.simulated {
            f.write_str(" (simulated)")?;
        }
        Ok(())
    }
}
