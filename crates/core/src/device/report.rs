//! What a transfer did, and what it was predicted to do.

use std::{fmt, time::Duration};

use crate::{CostBasis, DeviceId, Rejections, SizeClass, TransferMethod, TransferPath};

/// How a transfer went. Allocates nothing.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TransferReport {
    /// From where to where.
    pub path: TransferPath,
    /// How.
    pub method: TransferMethod,
    /// Whose queue did the work.
    pub lane: DeviceId,
    /// How many queues took part.
    pub lanes: u32,
    /// Bytes moved.
    pub bytes: u64,
    /// Into how many pieces they were cut.
    pub chunks: u32,
    /// Host time that submission took: waiting for room, calls into the driver, and what the first transfer on a path prepares.
    /// `None` where no clock was read: times are those of measured transfers (see [`moving`](Self::moving)), and of all where an
    /// observer listens; so is `elapsed` then.
    pub submitting: Option<Duration>,
    /// Host time from the beginning of submission until the completion was observed. Where nobody looked for a while
    /// after the end this includes that while: it is no measure of the transfer's speed.
    pub elapsed: Option<Duration>,
    /// Time of the movement by the lane's own clock, where this transfer was measured: a GPU's clock for its queues, the
    /// host's for the host's.
    pub moving: Option<Duration>,
    /// The predicted time, on an idle device.
    pub predicted: Duration,
    /// Bytes of other transfers that were queued before the copy engine when the method was chosen. Counted only for the
    /// small transfers of high priority whose method depends on it, else 0.
    pub queued: u64,
    /// What the prediction rests on.
    pub basis: CostBasis,
    /// What was not taken, and why.
    pub rejected: Rejections,
    /// Whether a software driver played the device.
    pub simulated: bool,
}

impl TransferReport {
    /// A report of a transfer about to be submitted, with one lane and one chunk, and without times.
    #[must_use]
    #[inline]
    pub fn planned(path: TransferPath, method: TransferMethod, lane: DeviceId, bytes: u64) -> Self {
        Self {
            path,
            method,
            lane,
            lanes: 1,
            bytes,
            chunks: 1,
            submitting: None,
            elapsed: None,
            moving: None,
            predicted: Duration::ZERO,
            queued: 0,
            basis: CostBasis::BuiltIn,
            rejected: Rejections::new(),
            simulated: false,
        }
    }

    /// The class that its size falls into.
    #[must_use]
    pub fn size_class(&self) -> SizeClass {
        SizeClass::of(self.bytes)
    }

    /// Bytes per second by the lane's clock, where measured; see [`moving`](Self::moving).
    #[must_use]
    pub fn bytes_per_second(&self) -> Option<f64> {
        let seconds = self.moving?.as_secs_f64();
        (seconds > 0.0).then(|| self.bytes as f64 / seconds)
    }
}

impl fmt::Display for TransferReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, bytes, method, lane, .. } = self;
        match method {
            TransferMethod::Fill => write!(f, "{bytes} bytes of {} filled on {lane}", path.dst)?,
            _ => write!(f, "{bytes} bytes {path} by {method} on {lane}")?,
        }
        if let Some(rate) = self.bytes_per_second() {
            write!(f, ", {:.2} GB/s", rate / 1e9)?;
        }
        if self.queued > 0 {
            write!(f, ", {}", QueuedBefore(self.queued))?;
        }
        if self.simulated {
            f.write_str(" (simulated)")?;
        }
        Ok(())
    }
}

/// Prints how many bytes are queued before a copy engine, as reports and plans say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedBefore(pub u64);

impl fmt::Display for QueuedBefore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 1 << 20 => {
                write!(f, "{} KiB queued before the copy engine", bytes.div_ceil(1 << 10))
            }
            bytes => write!(f, "{} MiB queued before the copy engine", bytes / (1 << 20)),
        }
    }
}
