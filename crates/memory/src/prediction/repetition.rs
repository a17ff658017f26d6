//! Detection of repeated access orders, across any number of allocations: what followed each pair of accesses.

use std::hash::Hash;

use super::{
    DeclaredAccess, PredictedAccess,
    hashing::{hash_of, hash_pair},
};

const SETS: usize = 512;
const WAYS: usize = 4;
/// Number of consecutive equal followers that confirm one.
const CONFIRMED: u8 = 2;
/// Upper limit of that counter.
const SURE: u8 = 3;

/// The access that followed a pair.
#[derive(Clone, Copy, Debug)]
struct Follower<K> {
    /// Hash of the pair.
    pair: u64,
    /// Hash of the access that followed.
    hash: u64,
    next: PredictedAccess<K>,
    seen: u8,
}

/// The most recent and most frequent pairs. A pair is identified by 64 bits: a collision costs one wrong prediction, of
/// a range that was once declared.
#[derive(Debug)]
pub(super) struct Repetition<K> {
    sets: Vec<[Option<Follower<K>>; WAYS]>,
    /// Hashes of the last two accesses, the latest second.
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

    /// Appends the ranges that follow the last access, as long as each is confirmed, without duplicates.
    pub(super) fn follow(&self, most: usize, into: &mut Vec<PredictedAccess<K>>) {
        let (mut first, mut second) = self.last;
        // Some followers may be duplicates, such as an input that every launch reads.
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
            // A confirmed entry is evicted gradually.
            Some(follower) if follower.seen > 1 => follower.seen -= 1,
            _ => *slot = Some(Follower { pair, hash, next, seen: 1 }),
        }
    }
}
