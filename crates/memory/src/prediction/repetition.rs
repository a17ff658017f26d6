//! What followed each pair of accesses: an order that repeats itself, over any number of allocations.

use std::hash::Hash;

use super::{DeclaredAccess, PredictedAccess, known::mark_of};

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
    mark: u64,
    next: PredictedAccess<K>,
    seen: u8,
}

/// The pairs that were seen last and most often. A pair is known by 64 bits: two that share them cost a wrong prediction,
/// of a range that was really declared once.
#[derive(Debug)]
pub(super) struct Repetition<K> {
    sets: Vec<[Option<Follower<K>>; WAYS]>,
    /// The last two accesses, the latest second.
    last: (Option<PredictedAccess<K>>, Option<PredictedAccess<K>>),
}

impl<K: Copy + Eq + Hash> Repetition<K> {
    pub(super) fn new() -> Self {
        Self { sets: vec![[None; WAYS]; SETS], last: (None, None) }
    }

    pub(super) fn observe(&mut self, access: &DeclaredAccess<K>) {
        let now = PredictedAccess { buffer: access.buffer, start: access.start, len: access.len };
        if let (Some(first), Some(second)) = self.last {
            self.note(mark_of(&(first, second)), now);
        }
        self.last = (self.last.1, Some(now));
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
        let (Some(mut first), Some(mut second)) = self.last else { return };
        let begin = second;
        // Some of what follows may be no news, such as an input that every launch reads.
        for _ in 0..most.saturating_mul(2) {
            let Some(next) = self.find(mark_of(&(first, second))) else { return };
            if into.len() == most {
                return;
            }
            if next != begin && !into.contains(&next) {
                into.push(next);
            }
            (first, second) = (second, next);
        }
    }

    fn find(&self, mark: u64) -> Option<PredictedAccess<K>> {
        let follower = self.set(mark)?.iter().flatten().find(|follower| follower.mark == mark)?;
        (follower.seen >= CONFIRMED).then_some(follower.next)
    }

    fn set(&self, mark: u64) -> Option<&[Option<Follower<K>>; WAYS]> {
        self.sets.get(mark as usize % SETS)
    }

    fn note(&mut self, mark: u64, next: PredictedAccess<K>) {
        let Some(set) = self.sets.get_mut(mark as usize % SETS) else { return };
        if let Some(known) = set.iter_mut().flatten().find(|follower| follower.mark == mark) {
            if known.next == next {
                known.seen = (known.seen + 1).min(SURE);
            } else if known.seen > 1 {
                known.seen -= 1;
            } else {
                known.next = next;
            }
            return;
        }
        let weakest = set.iter_mut().min_by_key(|slot| slot.map_or(0, |follower| follower.seen));
        let Some(slot) = weakest else { return };
        match slot {
            // What was confirmed makes room by and by.
            Some(follower) if follower.seen > 1 => follower.seen -= 1,
            _ => *slot = Some(Follower { mark, next, seen: 1 }),
        }
    }
}
