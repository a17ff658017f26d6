//! Reports of transfers: what they did, and what was predicted.

use std::{fmt, time::Duration};

use crate::{CostBasis, DeviceId, Rejections, SizeClass, TransferId, TransferMethod, TransferPath};

/// The report of a transfer. Needs no allocation.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TransferReport {
    /// Its id in [events](crate::events), if an observer wanted the transfer, or a `tracing` subscriber was installed, when it was submitted.
    pub id: Option<TransferId>,
    /// Source and destination.
    pub path: TransferPath,
    /// Method that moved the bytes.
    pub method: TransferMethod,
    /// Device whose queue did the work.
    pub lane: DeviceId,
    /// Number of devices whose queues took part: two if a transfer between devices is staged. Each may have used several queues.
    pub lanes: u32,
    /// Bytes moved.
    pub bytes: u64,
    /// Number of chunks that the bytes were split into, as planned: a staged download of more than 4 MiB into memory of the
    /// host that was never touched is split into at least eight of at most 2 MiB, whatever was planned.
    pub chunks: u32,
    /// Host time of the submission, once the method was chosen: driver calls, and all that may block or take
    /// long then. The page of `CopyBuilder` (crate `transload-transfer`) lists that. `None` if no clock was
    /// read: only measured transfers have times (see [`moving`](Self::moving)), or all if there is an observer.
    /// The same holds for `elapsed`.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "submitting_seconds", with = "crate::serde_seconds", default)
    )]
    pub submitting: Option<Duration>,
    /// Host time from the beginning of submission until the completion was observed. Includes the time from
    /// the completion until the transfer was polled, so it does not measure the transfer's speed.
    #[cfg_attr(feature = "serde", serde(rename = "elapsed_seconds", with = "crate::serde_seconds", default))]
    pub elapsed: Option<Duration>,
    /// Time of the movement by the lane's own clock, if the transfer was measured: a GPU's clock for its
    /// queues, the host's for the host's. It runs from the moment that the queue reached the transfer to the
    /// end, so it includes waiting for a copy engine or a link that transfers of other queues use: of
    /// transfers in flight at once, only their total time tells the rate of the link.
    #[cfg_attr(feature = "serde", serde(rename = "moving_seconds", with = "crate::serde_seconds", default))]
    pub moving: Option<Duration>,
    /// The predicted time, on an idle device.
    #[cfg_attr(feature = "serde", serde(rename = "predicted_seconds", with = "crate::serde_seconds"))]
    pub predicted: Duration,
    /// Bytes of other transfers that were queued for the copy engine when the method was chosen. Counted only
    /// for small transfers of high priority, whose method depends on it, else 0.
    #[cfg_attr(feature = "serde", serde(rename = "queued_bytes"))]
    pub queued: u64,
    /// Basis of the prediction.
    pub basis: CostBasis,
    /// Whether the second best method was tried, to know its time.
    #[cfg_attr(feature = "serde", serde(default))]
    pub explored: bool,
    /// Whether the bytes of a list went through scratch memory of the device: in long stretches by copy engines, gathered or scattered by
    /// a kernel there. Such a list has no [`moving`](Self::moving).
    #[cfg_attr(feature = "serde", serde(default))]
    pub through_device: bool,
    /// Rejected methods and the reasons.
    pub rejected: Rejections,
    /// Whether the device is simulated by a software driver.
    pub simulated: bool,
}

impl TransferReport {
    /// Creates a report of a transfer about to be submitted, with one lane and one chunk, and without times.
    #[must_use]
    #[inline]
    pub fn planned(path: TransferPath, method: TransferMethod, lane: DeviceId, bytes: u64) -> Self {
        Self {
            id: None,
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
            explored: false,
            through_device: false,
            rejected: Rejections::new(),
            simulated: false,
        }
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: Option<TransferId>) -> Self {
        self.id = id;
        self
    }

    /// Returns the class of its size.
    #[must_use]
    pub fn size_class(&self) -> SizeClass {
        SizeClass::of(self.bytes)
    }

    /// Returns bytes per second by the lane's clock, if measured. Lower than the link's rate if the transfer
    /// waited for the copy engine; see [`moving`](Self::moving).
    #[must_use]
    pub fn bytes_per_second(&self) -> Option<f64> {
        let seconds = self.moving?.as_secs_f64();
        (seconds > 0.0).then(|| self.bytes as f64 / seconds)
    }
}

/// Prints what was moved, how, the measured time and rate, if any, and the predicted time. The alternate form
/// (`{:#}`) adds a line for each rejected method with its reason.
impl fmt::Display for TransferReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, bytes, method, lane, .. } = self;
        match method {
            TransferMethod::Fill => write!(f, "{bytes} bytes of {} filled on {lane}", path.dst)?,
            _ => write!(f, "{bytes} bytes {path} by {method} on {lane}")?,
        }
        if let Some(moving) = self.moving {
            write!(f, " in {moving:.1?}")?;
        }
        // A rate that would be printed as 0 says less than the time.
        if let Some(rate) = self.bytes_per_second().map(|rate| rate / 1e9).filter(|rate| *rate >= 0.01) {
            write!(f, ", {rate:.2} GB/s")?;
        }
        if !self.predicted.is_zero() {
            write!(f, ", predicted {:.1?}", self.predicted)?;
        }
        if self.queued > 0 {
            write!(f, ", {}", QueuedBefore(self.queued))?;
        }
        if self.explored {
            f.write_str(", to try the second best method")?;
        }
        if self.through_device {
            f.write_str(", through device memory")?;
        }
        if self.simulated {
            f.write_str(" (simulated)")?;
        }
        if f.alternate() {
            self.rejected.iter().try_for_each(|rejected| write!(f, "\n  rejected: {rejected}"))?;
        }
        Ok(())
    }
}

/// Formats the number of bytes queued for a copy engine, for reports and plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedBefore(pub u64);

impl fmt::Display for QueuedBefore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 1 << 20 => {
                write!(f, "{} KiB queued for the copy engine", bytes.div_ceil(1 << 10))
            }
            bytes => write!(f, "{} MiB queued for the copy engine", bytes / (1 << 20)),
        }
    }
}
