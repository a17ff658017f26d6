//! How far predictions may reach, by how many came true.

/// Accesses of silence after a first prediction in vain.
const FIRST_PAUSE: u64 = 8;
/// How often that doubles.
const MAX_DOUBLINGS: u32 = 9;
/// How many doublings of the reach count.
const MAX_REACH_SHIFT: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// Predictions that came true since one was in vain.
    streak: u32,
    /// Times that predictions were in vain, less those that came true.
    failures: u32,
    paused_until: u64,
    hits: u64,
    misses: u64,
}

impl Backoff {
    /// How many ranges ahead may be predicted at this access; 0 while silent.
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

    /// So many predictions were in vain at once: one belief was wrong.
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
