//! The pure core: from declared accesses to the ranges that come next, in bounded memory and always the same.

use std::hash::Hash;

use super::{backoff::Backoff, hashing::hash_of, repetition::Repetition, stride::Strides};

/// A range that was declared to be used now, of the allocation `buffer`, which has `of` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeclaredAccess<K> {
    /// Which allocation.
    pub buffer: K,
    /// Tells apart what runs open each other through one allocation: the number of the launch's argument, say. Strides are
    /// looked for per allocation and stream.
    pub argument: u32,
    /// The range's first byte, counted from the allocation's.
    pub start: usize,
    /// The range's bytes.
    pub len: usize,
    /// The allocation's bytes.
    pub allocation_len: usize,
}

/// A range that is expected to be used soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PredictedAccess<K> {
    /// Which allocation.
    pub buffer: K,
    /// The range's first byte, counted from the allocation's.
    pub start: usize,
    /// The range's bytes, at least 1. The range lies within the allocation.
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

/// Finds sequential, strided and repeated access, and predicts.
///
/// * A *stride* (a sequential sweep is one, of the range's own length) is believed once it was seen twice in a row by one stream
///   of one allocation: from the third access on. A range that is only used again and again is no stride and disturbs none.
/// * A *repetition* is believed where what followed the last two accesses was the same twice: from the third step on, where
///   each step uses some ranges in the same order. It goes before strides, since it also knows what follows a sweep's end.
///
/// Predictions begin with one range ahead and reach further as they come true, up to the depth (of each stride, if several run
/// open each other). One that does not come true
/// silences the predictor for 8 accesses, the next for 16, and so on up to 4,096, until one comes true again; so what is
/// predicted in vain of random accesses becomes less and less.
///
/// Memory is bounded, whatever is observed: 2,048 pairs of accesses, 64 strides, 64 predictions. Nothing depends on time or
/// on chance: the same accesses give the same predictions.
#[derive(Debug)]
pub struct AccessPredictor<K> {
    depth: usize,
    bytes_ahead: usize,
    strides: Strides<K>,
    repetition: Repetition<K>,
    backoff: Backoff,
    /// The number of the access that is observed.
    now: u64,
    /// Predicted and not yet used.
    ahead: Vec<Ahead<K>>,
    fresh: Vec<PredictedAccess<K>>,
    candidates: Vec<PredictedAccess<K>>,
}

#[derive(Clone, Copy, Debug)]
struct Ahead<K> {
    predicted: PredictedAccess<K>,
    /// Of one stride, or of the repetition.
    group: u64,
    /// Where it is not used by the access of this number within the group, it was in vain.
    until: u64,
    /// Or by this one of all, should the group have no more.
    expires: u64,
}

impl<K: Copy + Eq + Hash> AccessPredictor<K> {
    /// The largest depth.
    pub const MAX_DEPTH: usize = 16;
    /// Predictions that may be open at once.
    const MAX_OPEN: usize = 64;
    /// The group of what the repetition predicts.
    const REPEATED: u64 = 0;
    /// So many accesses of any group make a prediction old.
    const MAX_AGE: u64 = 256;

    /// A predictor that looks at most so many ranges ahead (1 to 16), and at most so many bytes in all.
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

    /// Notes an access, and answers the ranges that are expected next and were not predicted before, the next one first.
    /// An access of no bytes, or one that leaves its allocation, is not noted.
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
            // The order is known, but for what is read in between all the time.
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

    /// A prediction that was not acted upon is forgotten, and judged no more.
    pub fn withdraw(&mut self, predicted: &PredictedAccess<K>) {
        self.ahead.retain(|ahead| ahead.predicted != *predicted);
    }

    /// Everything about an allocation that is gone is forgotten.
    pub fn forget(&mut self, buffer: K) {
        self.ahead.retain(|ahead| ahead.predicted.buffer != buffer);
        self.strides.forget(buffer);
        self.repetition.forget(buffer);
    }

    /// How many predictions came true, and how many did not.
    #[must_use]
    pub fn hits_and_misses(&self) -> (u64, u64) {
        self.backoff.hits_and_misses()
    }

    /// What of the predictions came true with this access, and what was in vain.
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
            // They came of the same belief.
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
