//! Hashes each tensor from bytes that arrive in pieces, in the file's order.

use std::hash::Hasher as _;

use twox_hash::xxhash3_64::Hasher;

/// XXH3 with 64 bits and seed 0, as implemented in other languages.
pub(super) struct Hashes {
    values: Vec<u64>,
    hasher: Hasher,
    /// The tensor that the hasher is in.
    tensor: Option<usize>,
}

impl Hashes {
    /// Starts with all tensors empty.
    pub(super) fn new(tensors: usize) -> Self {
        Self { values: vec![Hasher::oneshot(&[]); tensors], hasher: Hasher::new(), tensor: None }
    }

    /// Adds the next bytes. After another tensor, a tensor cannot be continued.
    pub(super) fn update(&mut self, tensor: usize, bytes: &[u8]) {
        if self.tensor != Some(tensor) {
            self.close();
            self.tensor = Some(tensor);
        }
        self.hasher.write(bytes);
    }

    /// Returns the hashes, in the file's order.
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
