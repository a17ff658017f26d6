//! Costs of a method on a path: a curve through measured points, or a latency and a bandwidth.

use std::{fmt, ops::RangeInclusive, time::Duration};

use crate::{TransferMethod, TransferPath};

/// The basis of a prediction, least reliable first; named in every report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum CostBasis {
    /// The backend's default costs: not measured on this machine.
    BuiltIn,
    /// Corrected by the times of transfers.
    Refined,
    /// Measured on this machine.
    Measured,
    /// Set by the user.
    User,
}

impl fmt::Display for CostBasis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::BuiltIn => "built-in table, not measured here",
            Self::Refined => "corrected by transfers",
            Self::Measured => "measured here",
            Self::User => "set by the user",
        })
    }
}

/// Time as a function of size: linear between points of ascending size, and extrapolated after the last. Less than the first takes as
/// long as the first, and more than the last at least as long as the last, so noise leads to no time below all that was measured.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(into = "Vec<super::serde_forms::CostPoint>", try_from = "Vec<super::serde_forms::CostPoint>")
)]
pub struct CostModel {
    /// Bytes and seconds, ascending in bytes; at least two points.
    pub(super) points: Vec<(u64, f64)>,
}

impl CostModel {
    /// Creates a model from a latency and a bandwidth in bytes per second.
    #[must_use]
    pub fn linear(latency: Duration, bytes_per_second: f64) -> Self {
        const FAR: u64 = 1 << 40;
        let latency = latency.as_secs_f64();
        let rate = if bytes_per_second > 0.0 { bytes_per_second } else { f64::MIN_POSITIVE };
        let far = (latency + FAR as f64 / rate).min(f64::MAX);
        Self { points: vec![(0, latency), (FAR, far)] }
    }

    /// Creates a model from measured points, in any order; of equal sizes the fastest counts. `None` if there
    /// are fewer than two different sizes.
    #[must_use]
    pub fn through(points: &[(u64, Duration)]) -> Option<Self> {
        Self::from_points(points.iter().map(|(bytes, time)| (*bytes, time.as_secs_f64())).collect())
    }

    pub(super) fn from_points(mut points: Vec<(u64, f64)>) -> Option<Self> {
        points.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        points.dedup_by_key(|point| point.0);
        (points.len() >= 2).then_some(Self { points })
    }

    /// Returns the model with the times of some sizes multiplied by a factor, and the others as they were.
    #[must_use]
    pub fn scaled(&self, sizes: RangeInclusive<u64>, factor: f64) -> Self {
        /// A size beyond all others, which keeps the slope after the last point.
        const FAR: u64 = 1 << 60;
        let (start, end) = (*sizes.start(), *sizes.end());
        let edges = [start.saturating_sub(1), start, end, end.saturating_add(1), FAR];
        let known = self.points.iter().map(|point| point.0);
        let points = known.chain(edges.map(|edge| edge.min(FAR))).map(|bytes| {
            let factor = if sizes.contains(&bytes) { factor } else { 1.0 };
            (bytes, (self.seconds(bytes) * factor).min(f64::MAX))
        });
        Self::from_points(points.collect()).unwrap_or_else(|| self.clone())
    }

    /// Returns the predicted time for `bytes`.
    #[must_use]
    pub fn predict(&self, bytes: u64) -> Duration {
        // Saturates at the ends of the range.
        Duration::from_nanos((self.seconds(bytes) * 1e9 + 0.5) as u64)
    }

    /// Like [`predict`](Self::predict), in seconds and not rounded.
    pub(super) fn seconds(&self, bytes: u64) -> f64 {
        let right =
            self.points.partition_point(|point| point.0 < bytes).clamp(1, self.points.len().max(2) - 1);
        let (Some(left), Some(right)) = (self.points.get(right - 1), self.points.get(right)) else {
            return 0.0;
        };
        let slope = (right.1 - left.1) / (right.0 as f64 - left.0 as f64);
        let time = left.1 + slope * (bytes as f64 - left.0 as f64).max(0.0);
        if bytes > right.0 { time.max(right.1) } else { time }
    }
}

/// A backend's default cost of one method on one path.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PathCost {
    /// Source and destination.
    pub path: TransferPath,
    /// Transfer method.
    pub method: TransferMethod,
    /// Time as a function of size.
    pub model: CostModel,
}
