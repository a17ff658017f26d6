//! Bitmaps of the bytes that a batch uses: one bit a cell, which is a power of two that divides all bounds.

use std::ops::Range;

use super::starts::Starts;
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
    /// Number of uses, and the least length of those that are not empty.
    uses: usize,
    shortest: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { first: usize::MAX, end: 0, bits: 0, uses: 0, shortest: usize::MAX }
    }
}

impl Word {
    /// Returns a bit for each cell with this access that the one before it, maybe in the `last` word, has not.
    fn begun(&self, access: Access, last: Self) -> u64 {
        let of = |word: &Self| if access == Access::Read { word.read } else { word.written };
        of(self) & !(of(self) << 1 | of(&last) >> (BITS - 1))
    }
}

impl Bounds {
    /// Returns the bounds of these ranges. Empty ones have none.
    pub(crate) fn of(ranges: impl ExactSizeIterator<Item = Range<usize>>) -> Self {
        let uses = ranges.len();
        let (mut first, mut last, mut bits, mut shortest) = (usize::MAX, 0, 0, usize::MAX);
        for Range { start, end } in ranges.filter(|range| !range.is_empty()) {
            first = first.min(start);
            last = last.max(end);
            bits |= start | end;
            shortest = shortest.min(end - start);
        }
        Self { first, end: last, bits, uses, shortest }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.first = self.first.min(other.first);
        self.end = self.end.max(other.end);
        self.bits |= other.bits;
        self.uses = self.uses.saturating_add(other.uses);
        self.shortest = self.shortest.min(other.shortest);
    }

    /// Returns an empty table of the uses' beginnings, unless it would be much longer than a list of them.
    pub(super) fn starts(&self) -> Option<Starts> {
        Starts::new(self.first, self.end, self.shortest, self.uses)
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
    /// Marks ranges, which are within the bounds, as used. Returns the index of the first that conflicts with another one that is
    /// marked, and the first byte that both use.
    #[inline]
    pub(crate) fn mark<R: Iterator<Item = Range<usize>>>(
        &mut self,
        access: Access,
        ranges: impl Fn() -> R,
    ) -> Option<(usize, usize)> {
        let byte = match access {
            Access::Read => self.mark_all(ranges(), |word, mask| {
                word.read |= mask;
                word.written & mask
            }),
            Access::Write => self.mark_all(ranges(), |word, mask| {
                let conflict = (word.read | word.written) & mask;
                word.written |= mask;
                conflict
            }),
        };
        byte.map(|(first, byte)| {
            let later = ranges().skip(first).position(|range| range.contains(&byte));
            (first + later.unwrap_or_default(), byte)
        })
    }

    /// Marks ranges, neighbours at once. Returns the first byte that conflicts, and the index of a range before which it is not.
    #[inline]
    fn mark_all(
        &mut self,
        ranges: impl Iterator<Item = Range<usize>>,
        mark: impl Fn(&mut Word, u64) -> u64,
    ) -> Option<(usize, usize)> {
        // Locals, since the words might be these.
        let (begin, shift, words) = (self.begin, self.shift, self.words.as_mut_slice());
        let mut mark = |start: usize, end: usize| {
            let cell = start.wrapping_sub(begin) >> shift;
            let count = end.wrapping_sub(start) >> shift;
            let (at, bit) = (cell / BITS, cell % BITS);
            let conflict = match words.get_mut(at) {
                Some(word) if bit + count <= BITS && count > 0 => {
                    mark(word, u64::MAX >> (BITS - count) << bit)
                }
                _ => return mark_words(words, cell..cell.saturating_add(count), &mark),
            };
            (conflict != 0).then(|| at * BITS + conflict.trailing_zeros() as usize)
        };
        let (mut start, mut end, mut first) = (0, 0, 0);
        let mut conflict = None;
        for (index, range) in ranges.enumerate() {
            if range.start != end {
                conflict = mark(start, end);
                if conflict.is_some() {
                    break;
                }
                (start, first) = (range.start, index);
            }
            end = range.end;
        }
        let cell = conflict.or_else(|| mark(start, end))?;
        Some((first, self.byte(cell)))
    }

    /// Returns the number of ranges of neighbouring cells.
    pub(crate) fn count(&self) -> usize {
        let mut last = Word::default();
        let begun = self.words.iter().map(|word| {
            let begun =
                word.begun(Access::Read, last).count_ones() + word.begun(Access::Write, last).count_ones();
            last = *word;
            begun as usize
        });
        begun.sum()
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

/// Marks cells, none or of several words. Returns the first that conflicts.
#[inline(never)]
fn mark_words(
    words: &mut [Word],
    cells: Range<usize>,
    mark: &impl Fn(&mut Word, u64) -> u64,
) -> Option<usize> {
    let mut rest = cells;
    while !rest.is_empty() {
        let (at, bit) = (rest.start / BITS, rest.start % BITS);
        let count = (BITS - bit).min(rest.len());
        let conflict = mark(words.get_mut(at)?, u64::MAX >> (BITS - count) << bit);
        if conflict != 0 {
            return Some(at * BITS + conflict.trailing_zeros() as usize);
        }
        rest.start += count;
    }
    None
}
