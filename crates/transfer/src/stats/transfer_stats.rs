//! What the transfers of one path, method and size class came to.

use std::{fmt, time::Duration};

use transload_core::{SizeClass, TransferMethod, TransferPath};

use crate::Sampling;

/// The transfers of one path by one method in one size class. Refused transfers are in none.
///
/// Rates and [`time`](Self::time) come from measured transfers only. Latencies come from those of them whose end was observed;
/// of a manager with an observer, from all whose end was observed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TransferStats {
    /// From where to where.
    pub path: TransferPath,
    /// How.
    pub method: TransferMethod,
    /// Which sizes.
    pub size_class: SizeClass,
    /// Transfers that completed. One whose handle was dropped counts once its end is known: by then several more were
    /// submitted, or someone asked for statistics or drained.
    pub transfers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Transfers that failed, while they were enqueued or afterwards.
    pub failures: u64,
    /// Transfers whose handles were dropped before their end was observed. Those that ended since are in
    /// [`transfers`](Self::transfers) or [`failures`](Self::failures) as well; the others are still under way.
    pub abandoned: u64,
    /// How many of `transfers` were measured by the lane's clock (the host's, for the host's lanes); see
    /// [`sampling`](Self::sampling).
    pub measured: u64,
    /// The bytes of the measured ones.
    pub measured_bytes: u64,
    /// The sum of the measured ones' times.
    pub time: Duration,
    /// The best rate of a measured one, in bytes per second.
    pub best_rate: Option<f64>,
    /// Half of the completions were observed within this time from the beginning of their submission. This percentile
    /// and the next two are up to 1/8 too large, never too small.
    pub latency_p50: Option<Duration>,
    /// Likewise 90 %.
    pub latency_p90: Option<Duration>,
    /// Likewise 99 %.
    pub latency_p99: Option<Duration>,
    /// The longest, exactly.
    pub latency_max: Option<Duration>,
    /// Which transfers the manager measures where a transfer's own options do not say.
    pub sampling: Sampling,
    /// Whether a software driver played the device in any of them.
    pub simulated: bool,
}

impl TransferStats {
    /// The rate of the measured transfers taken together, in bytes per second.
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
        if let (Some(p50), Some(p90), Some(p99)) = (self.latency_p50, self.latency_p90, self.latency_p99) {
            write!(f, ", latency p50 {p50:.1?}, p90 {p90:.1?}, p99 {p99:.1?}")?;
        }
        if self.simulated {
            f.write_str(" (simulated)")?;
        }
        Ok(())
    }
}
