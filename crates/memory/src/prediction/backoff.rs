//! Limits how far predictions reach, by how many came true, with exponential backoff after misses.

/// Number of accesses without predictions after the first miss.
const FIRST_PAUSE: u64 = 8;
/// Maximum number of doublings of that pause.
const MAX_DOUBLINGS: u32 = 9;
/// Maximum number of doublings of the reach.
const MAX_REACH_SHIFT: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// Hits since the last miss.
    streak: u32,
    /// Misses minus hits, at least 0: the number of doublings.
    failures: u32,
    paused_until: u64,
    hits: u64,
    misses: u64,
}

impl Backoff {
    /// Returns how many ranges ahead may be predicted at this access; 0 during a pause.
    pub(super) fn reach(&self, now: u64) -> usize {
        if now < self.paused_until {
            return 0;
        }
        1 << self.streak.min(MAX_REACH_SHIFT)
    }

    pub(super) fn hit(&mut self, times: usize) {
        self.hits += times as u64;
        self.streak = self.streak.saturating_add(1);
        self.failures = self.failures.saturating_sub(1);
    }

    /// Records `times` predictions missed at once. They count as one failure, since they share one cause.
    pub(super) fn miss(&mut self, now: u64, times: usize) {
        self.misses += times as u64;
        self.streak = 0;
        self.paused_until = now.saturating_add(FIRST_PAUSE << self.failures.min(MAX_DOUBLINGS));
        self.failures = self.failures.saturating_add(1).min(MAX_DOUBLINGS + 1);
    }

    pub(super) fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}
