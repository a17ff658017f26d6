//! Which transfers are measured.

use std::fmt;

/// Which transfers are measured by the lane's clock, which is the host's for host lanes. Each path, method, size class
/// and submitting thread counts separately (some of more than 64 threads count together).
///
/// Other transfers read no clock, and report no times. Measuring takes two device events, half the cost of a transfer
/// of 4 KiB; so by default only some are measured. Statistics name their sampling
/// ([`TransferStats::sampling`](crate::TransferStats)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Sampling {
    /// None, except transfers whose options ask for it.
    Off,
    /// The first, and from then on each *n*-th: `Every(64)` measures the 1st, the 65th, the 129th; `Every(1)` all.
    /// `Every(0)` is [`Off`](Self::Off).
    Every(u32),
}

impl Sampling {
    /// Returns the number of transfers of which the first is measured, at least 1; `None` if none is.
    pub(crate) fn interval(self) -> Option<u64> {
        match self {
            Self::Off | Self::Every(0) => None,
            Self::Every(n) => Some(u64::from(n)),
        }
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::Every(64)
    }
}

impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off | Self::Every(0) => f.write_str("none measured"),
            Self::Every(1) => f.write_str("all measured"),
            Self::Every(n) => write!(f, "1 in {n} measured"),
        }
    }
}
