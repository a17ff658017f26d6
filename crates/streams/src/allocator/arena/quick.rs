//! Recently freed blocks by exact size, reused without a search and before merging.

/// Table entries; a power of two.
const ENTRIES: usize = 256;

/// Blocks of one size, most recently freed last.
#[derive(Default)]
struct Entry {
    size: u64,
    blocks: Vec<u32>,
}

/// A table with one size per entry. On a collision the older blocks are evicted.
pub(crate) struct Quick {
    entries: Box<[Entry]>,
}

impl Quick {
    pub(crate) fn new() -> Self {
        Self { entries: (0..ENTRIES).map(|_| Entry::default()).collect() }
    }

    #[inline]
    fn entry(&mut self, size: u64) -> &mut Entry {
        /// Fibonacci hashing: 2^64 divided by the golden ratio.
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        let index = (size >> 9).wrapping_mul(SPREAD) >> (u64::BITS - ENTRIES.trailing_zeros());
        &mut self.entries[index as usize % ENTRIES]
    }

    /// Removes the most recently freed block of `size`.
    #[inline]
    pub(crate) fn pop(&mut self, size: u64) -> Option<u32> {
        let entry = self.entry(size);
        if entry.size == size { entry.blocks.pop() } else { None }
    }

    /// Adds a block. Returns evicted blocks of another size.
    #[inline]
    pub(crate) fn push(&mut self, size: u64, node: u32) -> Vec<u32> {
        let entry = self.entry(size);
        let mut evicted = Vec::new();
        if entry.size != size {
            entry.size = size;
            evicted = std::mem::take(&mut entry.blocks);
        }
        entry.blocks.push(node);
        evicted
    }

    /// Removes all blocks.
    pub(crate) fn take_all(&mut self) -> Vec<u32> {
        self.entries.iter_mut().flat_map(|entry| std::mem::take(&mut entry.blocks)).collect()
    }
}
