//! Detection of constant strides, forwards or backwards, in the accesses of one argument to one allocation.

use std::hash::Hash;

use super::{DeclaredAccess, PredictedAccess, hashing::slot_of};

const SLOTS: usize = 64;
/// Slots per set: with one alone, two buffers of a launch would collide in one program of 64.
const WAYS: usize = 4;
/// Number of consecutive equal strides that confirm one.
const CONFIRMED: u8 = 2;

#[derive(Clone, Copy, Debug)]
struct AccessStream<K> {
    buffer: K,
    argument: u32,
    last: usize,
    stride: Stride,
    seen: u8,
    accesses: u64,
    /// Number of the latest access.
    last_access: u64,
}

/// A distance between the starts of two accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stride {
    bytes: usize,
    backwards: bool,
}

/// A set-associative table; a full set evicts the least recently used entry.
#[derive(Debug)]
pub(super) struct Strides<K> {
    slots: [Option<AccessStream<K>>; SLOTS],
    /// Number of accesses so far.
    now: u64,
}

impl<K: Copy + Eq + Hash> Strides<K> {
    pub(super) fn new() -> Self {
        Self { slots: [None; SLOTS], now: 0 }
    }

    pub(super) fn forget(&mut self, buffer: K) {
        for slot in &mut self.slots {
            if slot.is_some_and(|stream| stream.buffer == buffer) {
                *slot = None;
            }
        }
    }

    /// Records an access. Returns the stride if it is confirmed, and the number of the access within its stream.
    pub(super) fn observe(&mut self, access: &DeclaredAccess<K>) -> (Option<Stride>, u64) {
        self.now += 1;
        let first = slot_of(&(access.buffer, access.argument), SLOTS / WAYS) * WAYS;
        let Some(slots) = self.slots.get_mut(first..first + WAYS) else { return (None, 0) };
        let is_it =
            |stream: &AccessStream<K>| stream.buffer == access.buffer && stream.argument == access.argument;
        let Some(stream) = slots.iter_mut().flatten().find(|stream| is_it(stream)) else {
            let oldest =
                slots.iter_mut().min_by_key(|slot| slot.as_ref().map_or(0, |stream| stream.last_access));
            if let Some(slot) = oldest {
                *slot = Some(AccessStream {
                    buffer: access.buffer,
                    argument: access.argument,
                    last: access.start,
                    stride: Stride::default(),
                    seen: 0,
                    accesses: 0,
                    last_access: self.now,
                });
            }
            return (None, 0);
        };
        stream.last_access = self.now;
        stream.accesses += 1;
        let backwards = access.start < stream.last;
        let stride = Stride { bytes: access.start.abs_diff(stream.last), backwards };
        if stride.bytes > 0 {
            stream.seen = if stride == stream.stride { stream.seen.saturating_add(1) } else { 1 };
            stream.stride = stride;
            stream.last = access.start;
        }
        ((stream.seen >= CONFIRMED).then_some(stream.stride), stream.accesses)
    }
}

impl Stride {
    /// Appends the next ranges that start within the allocation, clipped at its end.
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
