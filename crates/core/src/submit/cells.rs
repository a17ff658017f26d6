//! Bitmaps of the bytes that a batch uses: one bit a cell, which is a power of two that divides all bounds.

use std::ops::Range;

use crate::Access;

/// Bits of a word.
const BITS: usize = u64::BITS as usize;
/// Words that a bitmap may have besides two for each use.
const FEW_WORDS: usize = 64;

/// The bounds of an allocation's uses.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// The first used byte, and the end of the last.
    first: usize,
    end: usize,
    /// All bounds, combined bit by bit: the lowest bit divides them all.
    bits: usize,
    /// Number of uses.
    uses: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { first: usize::MAX, end: 0, bits: 0, uses: 0 }
    }
}

impl Bounds {
    /// Adds a range. An empty one has no bounds.
    #[inline]
    pub(crate) fn add(&mut self, range: &Range<usize>) {
        if !range.is_empty() {
            let Range { start, end } = *range;
            self.merge(&Self { first: start, end, bits: start | end, uses: 1 });
        }
    }

    #[inline]
    pub(crate) fn merge(&mut self, other: &Self) {
        self.first = self.first.min(other.first);
        self.end = self.end.max(other.end);
        self.bits |= other.bits;
        self.uses = self.uses.saturating_add(other.uses);
    }

    /// Returns an empty bitmap for these bounds, unless it would be much longer than a list of the uses.
    pub(crate) fn cells(&self) -> Option<Cells> {
        // No bits, if there are no uses.
        let shift = self.bits.trailing_zeros().min(usize::BITS - 1);
        let cells = self.end.saturating_sub(self.first) >> shift;
        // One more, so that the last run ends before the end.
        let words = cells / BITS + 1;
        let is_short = words <= self.uses.saturating_mul(2).saturating_add(FEW_WORDS);
        is_short.then(|| Cells { begin: self.first, shift, words: vec![Word::default(); words] })
    }
}

/// Which cells of an allocation are read, and which are written.
#[derive(Debug)]
pub(crate) struct Cells {
    /// The first cell's first byte.
    begin: usize,
    /// Binary logarithm of a cell's bytes.
    shift: u32,
    words: Vec<Word>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Word {
    read: u64,
    written: u64,
}

impl Cells {
    /// Marks a range, which is within the bounds, as read. Returns the first byte that is written, if there is one.
    #[inline]
    pub(crate) fn read(&mut self, range: &Range<usize>) -> Option<usize> {
        self.mark(range, |word, mask| {
            let conflict = word.written & mask;
            word.read |= mask;
            conflict
        })
    }

    /// Marks a range, which is within the bounds, as written. Returns the first byte that is read or written, if there
    /// is one.
    #[inline]
    pub(crate) fn write(&mut self, range: &Range<usize>) -> Option<usize> {
        self.mark(range, |word, mask| {
            let conflict = (word.read | word.written) & mask;
            word.written |= mask;
            conflict
        })
    }

    #[inline]
    fn mark(&mut self, range: &Range<usize>, mark: impl Fn(&mut Word, u64) -> u64) -> Option<usize> {
        if range.is_empty() {
            return None;
        }
        let cell = |byte: usize| byte.wrapping_sub(self.begin) >> self.shift;
        let (first, last) = (cell(range.start), cell(range.end).wrapping_sub(1));
        let (word, until) = (first / BITS, last / BITS);
        let (mut mask, end) = (u64::MAX << (first % BITS), u64::MAX >> (BITS - 1 - last % BITS));
        for at in word..until {
            let conflict = mark(self.words.get_mut(at)?, mask);
            if conflict != 0 {
                return Some(self.first_byte(at, conflict));
            }
            mask = u64::MAX;
        }
        let conflict = mark(self.words.get_mut(until)?, mask & end);
        (conflict != 0).then(|| self.first_byte(until, conflict))
    }

    /// Returns the first byte of the first of a word's cells.
    #[cold]
    fn first_byte(&self, word: usize, cells: u64) -> usize {
        self.byte(word * BITS + cells.trailing_zeros() as usize)
    }

    /// Calls `found` for each range of neighbouring cells with this access, in order.
    pub(crate) fn each(&self, access: Access, mut found: impl FnMut(Range<usize>)) {
        let (mut last, mut begun) = (0, None);
        for (at, word) in self.words.iter().enumerate() {
            let word = if access == Access::Read { word.read } else { word.written };
            // A bit for each cell that differs from the one before it.
            let mut edges = word ^ (word << 1 | last);
            last = word >> (BITS - 1);
            while edges != 0 {
                let byte = self.byte(at * BITS + edges.trailing_zeros() as usize);
                edges &= edges - 1;
                match begun.take() {
                    None => begun = Some(byte),
                    Some(start) => found(start..byte),
                }
            }
        }
    }

    fn byte(&self, cell: usize) -> usize {
        self.begin + (cell << self.shift)
    }
}
