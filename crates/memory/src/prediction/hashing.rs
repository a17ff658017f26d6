//! Deterministic hashing for the predictor's fixed-size tables.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
};

use transload_core::BufferId;

/// A map from allocations. Their identifiers are assigned by this process, so no attacker can cause collisions.
pub(super) type ByBuffer<V> = HashMap<BufferId, V, BuildHasherDefault<FastHasher>>;

/// A multiply-rotate hasher: fast, and the same in every run.
#[derive(Default)]
pub(super) struct FastHasher(u64);

impl FastHasher {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let word = chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            self.mix(word);
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
}

/// Returns a hash of the value.
pub(super) fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = FastHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Combines two hashes, in order.
pub(super) fn hash_pair(first: u64, second: u64) -> u64 {
    let mut hasher = FastHasher(first);
    hasher.mix(second);
    hasher.finish()
}

/// Returns the slot of a value, one of `slots` (at least 1).
pub(super) fn slot_of(value: &impl Hash, slots: usize) -> usize {
    (hash_of(value) % slots.max(1) as u64) as usize
}
