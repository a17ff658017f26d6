//! Predicts the next ranges from declared accesses. Pure and deterministic, with bounded memory.

use std::hash::Hash;

use super::{backoff::Backoff, hashing::hash_of, repetition::Repetition, stride::Strides};

/// A range of the allocation `buffer` that is about to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeclaredAccess<K> {
    /// Allocation identifier.
    pub buffer: K,
    /// Index of the launch argument, say. Strides are detected per allocation and argument, so that concurrent sweeps
    /// through one allocation are told apart.
    pub argument: u32,
    /// Offset of the range within the allocation, in bytes.
    pub start: usize,
    /// Length of the range in bytes.
    pub len: usize,
    /// Length of the allocation in bytes.
    pub allocation_len: usize,
}

/// A range that is predicted to be used soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PredictedAccess<K> {
    /// Allocation identifier.
    pub buffer: K,
    /// Offset of the range within the allocation, in bytes.
    pub start: usize,
    /// Length of the range in bytes, at least 1. The range lies within the allocation.
    pub len: usize,
}

impl<K: PartialEq> PredictedAccess<K> {
    fn covers(&self, access: &DeclaredAccess<K>) -> bool {
        let end = access.start.saturating_add(access.len);
        self.buffer == access.buffer
            && self.start <= access.start
            && end <= self.start.saturating_add(self.len)
    }
}

/// Detects sequential, strided and repeated access, and predicts the next ranges.
///
/// * A *stride* (a sequential sweep has the range's own length) is confirmed once two consecutive distances of one
///   argument to one allocation are equal, so from the third access on. Repeated use of one range is no stride and does
///   not disturb one.
/// * A *repetition* is confirmed once the same access followed the last two accesses twice, so from the third step of a
///   repeated order on. It takes precedence over strides, since it also knows what follows the end of a sweep.
///
/// Predictions start with one range ahead and reach further as they come true, up to `depth` ranges per stride. A miss
/// stops predictions for 8 accesses, the next for 16, and so on up to 4,096, until one comes true; so random accesses
/// cause fewer and fewer wrong predictions.
///
/// Memory is bounded: 2,048 pairs of accesses, 64 strides, 64 predictions. Nothing depends on time or chance: the same
/// accesses give the same predictions.
#[derive(Debug)]
pub struct AccessPredictor<K> {
    depth: usize,
    bytes_ahead: usize,
    strides: Strides<K>,
    repetition: Repetition<K>,
    backoff: Backoff,
    /// Number of the current access.
    now: u64,
    /// Predictions not used yet.
    ahead: Vec<Ahead<K>>,
    fresh: Vec<PredictedAccess<K>>,
    candidates: Vec<PredictedAccess<K>>,
}

#[derive(Clone, Copy, Debug)]
struct Ahead<K> {
    predicted: PredictedAccess<K>,
    /// Identifies the stride, or the repetition.
    group: u64,
    /// Missed if not used by this access number within the group.
    until: u64,
    /// Missed if not used by this access number overall, in case the group ends.
    expires: u64,
}

impl<K: Copy + Eq + Hash> AccessPredictor<K> {
    /// Maximum depth.
    pub const MAX_DEPTH: usize = 16;
    /// Maximum number of open predictions.
    const MAX_OPEN: usize = 64;
    /// Group of predictions from the repetition.
    const REPEATED: u64 = 0;
    /// Accesses of any group after which a prediction expires.
    const MAX_AGE: u64 = 256;

    /// Creates a predictor with at most `depth` ranges (1 to 16) and `bytes_ahead` bytes ahead.
    #[must_use]
    pub fn new(depth: usize, bytes_ahead: usize) -> Self {
        Self {
            depth: depth.clamp(1, Self::MAX_DEPTH),
            bytes_ahead,
            strides: Strides::new(),
            repetition: Repetition::new(),
            backoff: Backoff::default(),
            now: 0,
            ahead: Vec::with_capacity(Self::MAX_OPEN),
            fresh: Vec::with_capacity(Self::MAX_DEPTH),
            candidates: Vec::with_capacity(Self::MAX_DEPTH),
        }
    }

    /// Records an access and returns the newly predicted ranges, the next one first. An access of 0 bytes, or beyond
    /// the end of its allocation, is ignored.
    pub fn observe(&mut self, access: DeclaredAccess<K>) -> &[PredictedAccess<K>] {
        self.fresh.clear();
        let within = access.start.checked_add(access.len).is_some_and(|end| end <= access.allocation_len);
        if access.len == 0 || !within {
            return &self.fresh;
        }
        self.now += 1;
        let (stride, number) = self.strides.observe(&access);
        let stream = hash_of(&(access.buffer, access.argument)) | 1;
        self.judge(&access, stream, number);
        self.repetition.observe(&access);
        let reach = self.backoff.reach(self.now).min(self.depth);
        self.candidates.clear();
        if reach > 0 {
            self.repetition.follow(reach, &mut self.candidates);
            // Twice the distance, because constantly read inputs may come in between.
            let (mut group, mut from, mut patience) = (Self::REPEATED, self.now, 2);
            if self.candidates.is_empty()
                && let Some(stride) = stride
            {
                stride.follow(&access, reach, &mut self.candidates);
                (group, from, patience) = (stream, number, 1);
            }
            self.choose(&access, reach, group, |hop| from.saturating_add(hop * patience + 1));
        }
        &self.fresh
    }

    /// Withdraws a prediction that was not acted upon; it no longer counts as hit or miss.
    pub fn withdraw(&mut self, predicted: &PredictedAccess<K>) {
        self.ahead.retain(|ahead| ahead.predicted != *predicted);
    }

    /// Forgets everything about a dropped allocation.
    pub fn forget(&mut self, buffer: K) {
        self.ahead.retain(|ahead| ahead.predicted.buffer != buffer);
        self.strides.forget(buffer);
        self.repetition.forget(buffer);
    }

    /// Returns the numbers of hits and misses.
    #[must_use]
    pub fn hits_and_misses(&self) -> (u64, u64) {
        self.backoff.hits_and_misses()
    }

    /// Settles which predictions came true with this access, and which were missed.
    fn judge(&mut self, access: &DeclaredAccess<K>, stream: u64, number: u64) {
        if self.ahead.is_empty() {
            return;
        }
        let before = self.ahead.len();
        self.ahead.retain(|ahead| !ahead.predicted.covers(access));
        if self.ahead.len() < before {
            self.backoff.hit(before - self.ahead.len());
        }
        let (waited, now) = (self.ahead.len(), self.now);
        self.ahead.retain(|ahead| match ahead.group {
            _ if ahead.expires < now => false,
            Self::REPEATED => ahead.until >= now,
            group => group != stream || ahead.until >= number,
        });
        if self.ahead.len() < waited {
            self.backoff.miss(now, waited - self.ahead.len());
            // The others share the wrong assumption.
            self.ahead.clear();
        }
    }

    fn choose(&mut self, access: &DeclaredAccess<K>, reach: usize, group: u64, until: impl Fn(u64) -> u64) {
        let mut open = self.ahead.iter().filter(|ahead| ahead.group == group).count();
        let mut bytes = self.ahead.iter().fold(0_usize, |sum, ahead| sum.saturating_add(ahead.predicted.len));
        for (hop, candidate) in (1..).zip(&self.candidates) {
            if open >= reach || self.ahead.len() >= Self::MAX_OPEN {
                return;
            }
            let known = self.ahead.iter().any(|ahead| ahead.predicted == *candidate);
            if known || candidate.covers(access) {
                continue;
            }
            bytes = bytes.saturating_add(candidate.len);
            if bytes > self.bytes_ahead {
                return;
            }
            let expires = self.now.saturating_add(Self::MAX_AGE);
            self.ahead.push(Ahead { predicted: *candidate, group, until: until(hop), expires });
            self.fresh.push(*candidate);
            open += 1;
        }
    }
}
