//! One hash for each tensor, over bytes that come in the file's order and in pieces.

use std::hash::Hasher as _;

use twox_hash::xxhash3_64::Hasher;

/// XXH3 with 64 bits and seed 0, which other languages have too.
pub(super) struct Hashes {
    values: Vec<u64>,
    hasher: Hasher,
    /// Whose bytes the hasher has.
    tensor: Option<usize>,
}

impl Hashes {
    /// All tensors without bytes so far.
    pub(super) fn new(tensors: usize) -> Self {
        Self { values: vec![Hasher::oneshot(&[]); tensors], hasher: Hasher::new(), tensor: None }
    }

    /// Takes the bytes that follow. A tensor that was left is not come back to.
    pub(super) fn update(&mut self, tensor: usize, bytes: &[u8]) {
        if self.tensor != Some(tensor) {
            self.close();
            self.tensor = Some(tensor);
        }
        self.hasher.write(bytes);
    }

    /// The hashes, in the file's order.
    pub(super) fn finish(mut self) -> Vec<u64> {
        self.close();
        self.values
    }

    fn close(&mut self) {
        if let Some(value) = self.tensor.take().and_then(|tensor| self.values.get_mut(tensor)) {
            *value = std::mem::take(&mut self.hasher).finish();
        }
    }
}
