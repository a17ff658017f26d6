//! How many transfers are timed by their lane's own clock.

use std::fmt;

/// Which transfers are measured by the lane's clock, which for the host's lanes is the host's. Counted for
/// each path, method, size class and submitting thread of its own (of more than 64 threads some count together).
///
/// No clock is read for the others: their reports' times are zero. A measured transfer takes two events of the device more, which at 4 KiB is half of its cost; so by default only some
/// are. Statistics say which sampling they rest on ([`TransferStats::sampling`](crate::TransferStats)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sampling {
    /// None, except where a transfer's own options ask for it.
    Off,
    /// The first, and from then on each *n*-th: `Every(64)` measures the 1st, the 65th, the 129th; `Every(1)` all.
    /// `Every(0)` is [`Off`](Self::Off).
    Every(u32),
}

impl Sampling {
    /// Whether the transfer with this number, counted from 0, is measured.
    #[must_use]
    pub fn takes(self, number: u64) -> bool {
        match self {
            Self::Off | Self::Every(0) => false,
            Self::Every(n) => number.is_multiple_of(u64::from(n)),
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
