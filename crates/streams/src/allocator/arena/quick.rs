//! Blocks freed a moment ago, by their exact size: taken again without looking for a fit, and without having been merged.

/// Entries of the table; a power of two.
const ENTRIES: usize = 256;

/// Blocks of one size, the latest freed last.
#[derive(Default)]
struct Entry {
    size: u64,
    blocks: Vec<u32>,
}

/// A table with one size per entry. Where two sizes meet in an entry, the older one's blocks leave.
pub(crate) struct Quick {
    entries: Box<[Entry]>,
}

impl Quick {
    pub(crate) fn new() -> Self {
        Self { entries: (0..ENTRIES).map(|_| Entry::default()).collect() }
    }

    #[inline]
    fn entry(&mut self, size: u64) -> &mut Entry {
        /// 2^64 divided by the golden ratio: neighbouring sizes come apart.
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        let index = (size >> 9).wrapping_mul(SPREAD) >> (u64::BITS - ENTRIES.trailing_zeros());
        &mut self.entries[index as usize % ENTRIES]
    }

    /// Takes the block of `size` freed last.
    #[inline]
    pub(crate) fn pop(&mut self, size: u64) -> Option<u32> {
        let entry = self.entry(size);
        if entry.size == size { entry.blocks.pop() } else { None }
    }

    /// Puts a block in. Returns the blocks of another size that had to leave.
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

    /// Takes every block out.
    pub(crate) fn take_all(&mut self) -> Vec<u32> {
        self.entries.iter_mut().flat_map(|entry| std::mem::take(&mut entry.blocks)).collect()
    }
}
