//! How far predictions may reach, by how many came true.

/// Accesses of silence after a first prediction in vain.
const SILENCE: u64 = 8;
/// How often that doubles.
const DOUBLINGS: u32 = 9;
/// How many doublings of the reach count.
const STEPS: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct Trust {
    /// Predictions that came true since one was in vain.
    streak: u32,
    /// Times that predictions were in vain, less those that came true.
    disappointed: u32,
    silent_until: u64,
    hits: u64,
    misses: u64,
}

impl Trust {
    /// How many ranges ahead may be predicted at this access; 0 while silent.
    pub(super) fn reach(&self, now: u64) -> usize {
        if now < self.silent_until {
            return 0;
        }
        1 << self.streak.min(STEPS)
    }

    pub(super) fn hit(&mut self, times: usize) {
        self.hits += times as u64;
        self.streak = self.streak.saturating_add(1);
        self.disappointed = self.disappointed.saturating_sub(1);
    }

    /// So many predictions were in vain at once: one belief was wrong.
    pub(super) fn miss(&mut self, now: u64, times: usize) {
        self.misses += times as u64;
        self.streak = 0;
        self.silent_until = now.saturating_add(SILENCE << self.disappointed.min(DOUBLINGS));
        self.disappointed = self.disappointed.saturating_add(1).min(DOUBLINGS + 1);
    }

    pub(super) fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}
