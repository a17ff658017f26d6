//! The order in which a workload uses its ranges.

/// An order of uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessPattern {
    /// Every chunk of one large buffer, once.
    Sequential,
    /// Every third chunk of one large buffer, once.
    Strided,
    /// The same layers in the same order, repeatedly; each is evicted to the host after use, as if memory were too small for
    /// all.
    Steps,
    /// Random chunks of one large buffer, evicted after use: nothing can be predicted.
    Random,
}

impl AccessPattern {
    /// All patterns.
    pub const ALL: [Self; 4] = [Self::Sequential, Self::Strided, Self::Steps, Self::Random];

    /// Returns the name used in row ids.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Strided => "strided",
            Self::Steps => "steps",
            Self::Random => "random",
        }
    }

    /// Returns whether each range is a separate allocation.
    #[must_use]
    pub fn has_own_allocations(self) -> bool {
        self == Self::Steps
    }

    /// Returns whether a range is evicted to the host after use.
    #[must_use]
    pub fn evicts(self) -> bool {
        matches!(self, Self::Steps | Self::Random)
    }

    /// Returns the order for `ranges` ranges, each used `times` times in repeating patterns.
    #[must_use]
    pub fn order(self, ranges: usize, times: usize, seed: u64) -> Vec<usize> {
        match self {
            Self::Sequential => (0..ranges).collect(),
            Self::Strided => (0..ranges).step_by(3).collect(),
            Self::Steps => (0..times).flat_map(|_| 0..ranges).collect(),
            Self::Random => {
                let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
                let mut any = || {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 33) as usize % ranges.max(1)
                };
                (0..ranges.saturating_mul(times)).map(|_| any()).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_stay_within_ranges_and_depend_on_the_seed() {
        for pattern in AccessPattern::ALL {
            let order = pattern.order(10, 3, 7);
            assert!(!order.is_empty() && order.iter().all(|index| *index < 10), "{pattern:?}");
            assert_eq!(order, pattern.order(10, 3, 7));
        }
        assert_eq!(AccessPattern::Strided.order(10, 3, 7), [0, 3, 6, 9]);
        assert_ne!(AccessPattern::Random.order(10, 3, 7), AccessPattern::Random.order(10, 3, 8));
        assert!(AccessPattern::Random.order(0, 3, 7).is_empty());
    }
}
