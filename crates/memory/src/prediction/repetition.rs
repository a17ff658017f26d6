//! What followed each pair of accesses: an order that repeats itself, over any number of allocations.

use std::hash::Hash;

use super::{
    DeclaredAccess, PredictedAccess,
    hashing::{hash_of, hash_pair},
};

const SETS: usize = 512;
const WAYS: usize = 4;
/// How often in a row the same must follow.
const CONFIRMED: u8 = 2;
/// Beyond this, more often counts no more.
const SURE: u8 = 3;

/// What followed a pair.
#[derive(Clone, Copy, Debug)]
struct Follower<K> {
    /// Of the pair.
    pair: u64,
    /// Of what followed.
    hash: u64,
    next: PredictedAccess<K>,
    seen: u8,
}

/// The pairs that were seen last and most often. A pair is known by 64 bits: two that share them cost a wrong prediction,
/// of a range that was really declared once.
#[derive(Debug)]
pub(super) struct Repetition<K> {
    sets: Vec<[Option<Follower<K>>; WAYS]>,
    /// Marks of the last two accesses, the latest second.
    last: (u64, u64),
    /// The latest access.
    latest: Option<PredictedAccess<K>>,
}

impl<K: Copy + Eq + Hash> Repetition<K> {
    pub(super) fn new() -> Self {
        Self { sets: vec![[None; WAYS]; SETS], last: (0, 0), latest: None }
    }

    pub(super) fn observe(&mut self, access: &DeclaredAccess<K>) {
        let now = PredictedAccess { buffer: access.buffer, start: access.start, len: access.len };
        let hash = hash_of(&now);
        self.note(hash_pair(self.last.0, self.last.1), hash, now);
        self.last = (self.last.1, hash);
        self.latest = Some(now);
    }

    pub(super) fn forget(&mut self, buffer: K) {
        for follower in self.sets.iter_mut().flatten() {
            if follower.is_some_and(|follower| follower.next.buffer == buffer) {
                *follower = None;
            }
        }
    }

    /// The ranges that follow the last access, as far as each is confirmed and none comes twice.
    pub(super) fn follow(&self, most: usize, into: &mut Vec<PredictedAccess<K>>) {
        let (mut first, mut second) = self.last;
        // Some of what follows may be no news, such as an input that every launch reads.
        for _ in 0..most.saturating_mul(2) {
            let Some(follower) = self.find(hash_pair(first, second)) else { return };
            if into.len() == most {
                return;
            }
            if self.latest != Some(follower.next) && !into.contains(&follower.next) {
                into.push(follower.next);
            }
            (first, second) = (second, follower.hash);
        }
    }

    fn find(&self, pair: u64) -> Option<&Follower<K>> {
        let set = self.sets.get(pair as usize % SETS)?;
        set.iter().flatten().find(|follower| follower.pair == pair && follower.seen >= CONFIRMED)
    }

    fn note(&mut self, pair: u64, hash: u64, next: PredictedAccess<K>) {
        let Some(set) = self.sets.get_mut(pair as usize % SETS) else { return };
        if let Some(known) = set.iter_mut().flatten().find(|follower| follower.pair == pair) {
            if known.next == next {
                known.seen = (known.seen + 1).min(SURE);
            } else if known.seen > 1 {
                known.seen -= 1;
            } else {
                (known.hash, known.next) = (hash, next);
            }
            return;
        }
        let weakest = set.iter_mut().min_by_key(|slot| slot.map_or(0, |follower| follower.seen));
        let Some(slot) = weakest else { return };
        match slot {
            // What was confirmed makes room by and by.
            Some(follower) if follower.seen > 1 => follower.seen -= 1,
            _ => *slot = Some(Follower { pair, hash, next, seen: 1 }),
        }
    }
}
