//! Accesses of one lane of one allocation that are the same distance apart, forwards or backwards.

use std::hash::Hash;

use super::{DeclaredAccess, PredictedAccess, known::slot_of};

const SLOTS: usize = 64;
/// A lane has as many slots to choose from: with one alone, two buffers of a launch would disturb each other in one program of
/// 64.
const WAYS: usize = 4;
/// How often in a row a distance must be seen.
const CONFIRMED: u8 = 2;

#[derive(Clone, Copy, Debug)]
struct Lane<K> {
    buffer: K,
    lane: u32,
    last: usize,
    stride: Stride,
    seen: u8,
    accesses: u64,
    /// When it was seen last.
    at: u64,
}

/// A distance between starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stride {
    bytes: usize,
    backwards: bool,
}

/// Where more lanes want the same few slots than there are, the one that was not seen for longest gives way.
#[derive(Debug)]
pub(super) struct Strides<K> {
    slots: [Option<Lane<K>>; SLOTS],
    /// Accesses so far.
    now: u64,
}

impl<K: Copy + Eq + Hash> Strides<K> {
    pub(super) fn new() -> Self {
        Self { slots: [None; SLOTS], now: 0 }
    }

    pub(super) fn forget(&mut self, buffer: K) {
        for slot in &mut self.slots {
            if slot.is_some_and(|lane| lane.buffer == buffer) {
                *slot = None;
            }
        }
    }

    /// Notes an access; answers the stride where it is confirmed, and the number of the access in its lane.
    pub(super) fn observe(&mut self, access: &DeclaredAccess<K>) -> (Option<Stride>, u64) {
        self.now += 1;
        let first = slot_of(&(access.buffer, access.argument), SLOTS / WAYS) * WAYS;
        let Some(slots) = self.slots.get_mut(first..first + WAYS) else { return (None, 0) };
        let is_it = |lane: &Lane<K>| lane.buffer == access.buffer && lane.lane == access.argument;
        let Some(lane) = slots.iter_mut().flatten().find(|lane| is_it(lane)) else {
            let oldest = slots.iter_mut().min_by_key(|slot| slot.as_ref().map_or(0, |lane| lane.at));
            if let Some(slot) = oldest {
                *slot = Some(Lane {
                    buffer: access.buffer,
                    lane: access.argument,
                    last: access.start,
                    stride: Stride::default(),
                    seen: 0,
                    accesses: 0,
                    at: self.now,
                });
            }
            return (None, 0);
        };
        lane.at = self.now;
        lane.accesses += 1;
        let backwards = access.start < lane.last;
        let stride = Stride { bytes: access.start.abs_diff(lane.last), backwards };
        if stride.bytes > 0 {
            lane.seen = if stride == lane.stride { lane.seen.saturating_add(1) } else { 1 };
            lane.stride = stride;
            lane.last = access.start;
        }
        ((lane.seen >= CONFIRMED).then_some(lane.stride), lane.accesses)
    }
}

impl Stride {
    /// The next ranges, as far as they begin within the allocation, the last one cut at its end.
    pub(super) fn follow<K: Copy>(
        self,
        access: &DeclaredAccess<K>,
        most: usize,
        into: &mut Vec<PredictedAccess<K>>,
    ) {
        let mut start = access.start;
        for _ in 0..most {
            let next =
                if self.backwards { start.checked_sub(self.bytes) } else { start.checked_add(self.bytes) };
            let Some(next) = next.filter(|next| *next < access.allocation_len) else { return };
            start = next;
            let len = access.len.min(access.allocation_len - start);
            into.push(PredictedAccess { buffer: access.buffer, start, len });
        }
    }
}
