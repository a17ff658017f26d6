//! Public statistics.

use std::{fmt, time::Duration};

use transload_core::{SizeClass, TransferMethod, TransferPath};

use crate::Sampling;

/// Statistics of one path, method and size class. Refused transfers are not counted.
///
/// Rates and [`time`](Self::time) come from measured transfers only. Latencies come from measured transfers whose end
/// was observed, or, of a manager with an observer, from all whose end was observed.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TransferStats {
    /// Source and destination.
    pub path: TransferPath,
    /// Method that moved the bytes.
    pub method: TransferMethod,
    /// Size class of the transfers.
    pub size_class: SizeClass,
    /// Completed transfers. One whose handle was dropped counts once its end is known, which may need further
    /// submissions, a read of the statistics or a drain.
    pub transfers: u64,
    /// Bytes of the completed transfers.
    pub bytes: u64,
    /// Transfers that failed, at submission or later.
    pub failures: u64,
    /// Transfers whose handles were dropped before their end was observed. Those that ended since also count in
    /// [`transfers`](Self::transfers) or [`failures`](Self::failures).
    pub abandoned: u64,
    /// Completed transfers measured by the lane's clock, which is the host's for host lanes; see
    /// [`sampling`](Self::sampling).
    pub measured: u64,
    /// Bytes of the measured transfers.
    pub measured_bytes: u64,
    /// Sum of the measured transfers' times.
    #[cfg_attr(feature = "serde", serde(rename = "time_seconds", with = "transload_core::serde_seconds"))]
    pub time: Duration,
    /// Best rate of a measured transfer, in bytes per second.
    #[cfg_attr(feature = "serde", serde(rename = "best_bytes_per_second"))]
    pub best_rate: Option<f64>,
    /// Median time from the beginning of submission to the observed completion. This percentile and the next two are up
    /// to 1/8 too large, never too small.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "latency_p50_seconds", with = "transload_core::serde_seconds", default)
    )]
    pub latency_p50: Option<Duration>,
    /// 90th percentile of the latency.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "latency_p90_seconds", with = "transload_core::serde_seconds", default)
    )]
    pub latency_p90: Option<Duration>,
    /// 99th percentile of the latency.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "latency_p99_seconds", with = "transload_core::serde_seconds", default)
    )]
    pub latency_p99: Option<Duration>,
    /// Largest latency, exact.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "latency_max_seconds", with = "transload_core::serde_seconds", default)
    )]
    pub latency_max: Option<Duration>,
    /// The manager's sampling, for transfers whose options do not set one.
    pub sampling: Sampling,
    /// Whether any of them ran on a software driver.
    pub simulated: bool,
}

impl TransferStats {
    /// Returns the average rate of the measured transfers, in bytes per second.
    #[must_use]
    pub fn average_rate(&self) -> Option<f64> {
        let seconds = self.time.as_secs_f64();
        (seconds > 0.0).then(|| self.measured_bytes as f64 / seconds)
    }
}

impl fmt::Display for TransferStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, method, size_class, transfers, bytes, failures, abandoned, .. } = self;
        write!(f, "{path} by {method}, {size_class}: {transfers} transfers, {bytes} bytes")?;
        write!(
            f,
            ", {failures} failed, {abandoned} abandoned, {} measured ({})",
            self.measured, self.sampling
        )?;
        if let (Some(average), Some(best)) = (self.average_rate(), self.best_rate) {
            write!(f, ", {:.2} GB/s on average, {:.2} at best", average / 1e9, best / 1e9)?;
        }
        match (self.latency_p50, self.latency_p90, self.latency_p99, self.latency_max) {
            // Of a few, percentiles would be the largest.
            (.., Some(longest)) if self.measured < 20 => {
                write!(f, ", latency until seen at most {longest:.1?}")?;
            }
            (Some(p50), Some(p90), Some(p99), _) => {
                write!(f, ", latency until seen p50 {p50:.1?}, p90 {p90:.1?}, p99 {p99:.1?}")?;
            }
            _ => {}
        }
        if self.simulated {
            f.write_str(" (simulated)")?;
        }
        Ok(())
    }
}
