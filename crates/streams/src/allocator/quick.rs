//! Blocks freed a moment ago, by their exact size: taken again without looking for a fit, and without having been merged.

use super::blocks::NONE;

/// Entries of the table; a power of two.
const ENTRIES: usize = 256;

/// The latest freed block of one size; each block names the next.
#[derive(Clone, Copy)]
struct Entry {
    size: u64,
    head: u32,
}

/// A table with one size per entry. Where two sizes meet in an entry, the older one's blocks go to the fitting blocks.
pub(crate) struct Quick {
    entries: Box<[Entry]>,
    /// How many blocks are in it.
    len: usize,
}

impl Quick {
    pub(crate) fn new() -> Self {
        Self { entries: vec![Entry { size: 0, head: NONE }; ENTRIES].into_boxed_slice(), len: 0 }
    }

    fn entry(&mut self, size: u64) -> &mut Entry {
        /// 2^64 divided by the golden ratio: neighbouring sizes come apart.
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        let index = (size >> 9).wrapping_mul(SPREAD) >> (u64::BITS - ENTRIES.trailing_zeros());
        &mut self.entries[index as usize % ENTRIES]
    }

    /// Takes the block of `size` freed last; `next` tells which one it names.
    pub(crate) fn pop(&mut self, size: u64, next: impl FnOnce(u32) -> u32) -> Option<u32> {
        let entry = self.entry(size);
        if entry.size != size || entry.head == NONE {
            return None;
        }
        let node = entry.head;
        entry.head = next(node);
        self.len -= 1;
        Some(node)
    }

    /// Puts a block in. Answers which block it must name as the next, and the first block of another size that had to
    /// leave (that whole list is out then).
    pub(crate) fn push(&mut self, size: u64, node: u32) -> (u32, u32) {
        self.len += 1;
        let entry = self.entry(size);
        if entry.size == size {
            let next = std::mem::replace(&mut entry.head, node);
            return (next, NONE);
        }
        let evicted = entry.head;
        *entry = Entry { size, head: node };
        (NONE, evicted)
    }

    /// Says that `count` blocks left with an evicted list.
    pub(crate) fn left(&mut self, count: usize) {
        self.len -= count;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the first block of every list out.
    pub(crate) fn take_all(&mut self) -> Vec<u32> {
        self.len = 0;
        let heads = self.entries.iter_mut().map(|entry| std::mem::replace(&mut entry.head, NONE));
        heads.filter(|head| *head != NONE).collect()
    }
}
