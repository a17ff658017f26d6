//! The uses of an allocation as disjoint ranges, ordered by address, in blocks of bounded length.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::{
    steps,
    uses::{Use, Uses},
};

/// Maximum number of segments in a block.
const BLOCK_CAPACITY: usize = 32;

/// Segments with more uses than this are not compared.
const MAX_COMPARED: usize = 16;

/// A range whose bytes all have the same uses.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) uses: Uses,
}

impl Segment {
    pub(super) fn new(range: Range<usize>, used: Use) -> Self {
        Self { start: range.start, end: range.end, uses: smallvec![used] }
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Returns whether the other segment follows this one directly and has the same uses. Returns `false` for
    /// segments with many uses.
    pub(super) fn can_merge(&self, other: &Self) -> bool {
        self.end == other.start
            && self.uses.len() == other.uses.len()
            && self.uses.len() <= MAX_COMPARED
            && self.uses.iter().zip(&other.uses).all(|(one, other)| one.is_same_as(other))
    }
}

type Block = SmallVec<[Segment; 1]>;

/// Disjoint, non-empty segments. A lookup takes two binary searches; an insertion moves at most a block, and
/// sometimes the list of blocks. Field order matters: the first block fills one cache line.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Segments {
    first: Block,
    /// The last segment that was looked up or added: the next lookup is usually there, or right after it.
    last: Position,
    /// The number of claims from which on the next block is due to be swept. If negative, sweeps are due at
    /// once, this many: two for each new block, and one for each new timeline.
    pub(super) sweep_at: i64,
    /// The blocks after the first, none empty, each with its start: a byte not after the first segment's
    /// start, and after the starts of all segments of earlier blocks.
    rest: Vec<(usize, Block)>,
}

/// The position of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) block: usize,
    pub(super) index: usize,
}

impl Default for Segments {
    fn default() -> Self {
        Self { first: Block::new(), last: Position::default(), sweep_at: i64::MAX, rest: Vec::new() }
    }
}

impl Segments {
    pub(super) fn are_several(&self) -> bool {
        self.first.len() > 1 || !self.rest.is_empty()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.rest.is_empty()
    }

    fn block(&self, block: usize) -> Option<&Block> {
        match block.checked_sub(1) {
            None => Some(&self.first),
            Some(later) => self.rest.get(later).map(|(_, block)| block),
        }
    }

    #[inline]
    pub(super) fn block_mut(&mut self, block: usize) -> Option<&mut Block> {
        match block.checked_sub(1) {
            None => Some(&mut self.first),
            Some(later) => self.rest.get_mut(later).map(|(_, block)| block),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: Position) -> Option<&mut Segment> {
        self.last = at;
        self.block_mut(at.block)?.get_mut(at.index)
    }

    /// Returns the segment that begins at a byte, if it is the last one used or the one after it, as it
    /// usually is.
    #[inline]
    pub(super) fn beginning_at(&mut self, byte: usize) -> Option<&mut Segment> {
        let Position { block, index } = self.last;
        let list = match block.checked_sub(1) {
            None => &mut self.first,
            Some(later) => &mut self.rest.get_mut(later)?.1,
        };
        match list.get_mut(index..)? {
            [here, ..] if here.start == byte => Some(here),
            [_, next, ..] if next.start == byte => {
                self.last.index = index + 1;
                Some(next)
            }
            _ => None,
        }
    }

    /// Returns the position of the first segment that ends after `byte`.
    pub(super) fn seek(&self, byte: usize) -> Position {
        steps::count();
        self.seek_near_last(byte).unwrap_or_else(|| self.seek_slow(byte))
    }

    /// Like [`seek`](Self::seek), but only looks at the last position and right after it.
    fn seek_near_last(&self, byte: usize) -> Option<Position> {
        let Position { block, index } = self.last;
        let list = self.block(block)?;
        let is_before = |before: usize| list.get(before).is_some_and(|before| before.end <= byte);
        let follows = || index.checked_sub(1).map_or(block == 0, is_before);
        match list.get(index..)? {
            [here, ..] if byte < here.end => {
                (here.start <= byte || follows()).then_some(Position { block, index })
            }
            [_, next, ..] if byte < next.end => Some(Position { block, index: index + 1 }),
            [] if block == self.rest.len() && follows() => Some(Position { block, index }),
            [_] if block == self.rest.len() => Some(Position { block, index: index + 1 }),
            _ => None,
        }
    }

    fn seek_slow(&self, byte: usize) -> Position {
        let block = self.rest.partition_point(|(start, _)| *start <= byte);
        let list = self.block(block).map_or(&[][..], |list| list);
        let index = list.partition_point(|segment| segment.end <= byte);
        if index == 0
            && let Some(before) = block.checked_sub(1)
            && let Some(list) = self.block(before)
            && list.last().is_some_and(|last| last.end > byte)
        {
            return Position { block: before, index: list.len() - 1 };
        }
        let is_next = index == list.len() && block < self.rest.len();
        if is_next { Position { block: block + 1, index: 0 } } else { Position { block, index } }
    }

    /// Returns the segments that overlap a range, in order. An empty range overlaps none.
    #[inline]
    pub(super) fn overlapping(&self, range: &Range<usize>) -> impl Iterator<Item = &Segment> {
        let (end, at) = match range.is_empty() {
            false => (range.end, self.seek(range.start)),
            true => (0, Position::default()),
        };
        self.until(end, at)
    }

    /// Returns the position of the first segment that may overlap a range, where the next lookup begins. An empty range overlaps none.
    #[inline]
    pub(super) fn find(&mut self, range: &Range<usize>) -> Option<Position> {
        if range.is_empty() {
            return None;
        }
        self.last = self.seek(range.start);
        Some(self.last)
    }

    /// Returns the segments from a position on that begin before `end`.
    #[inline]
    pub(super) fn until(&self, end: usize, at: Position) -> impl Iterator<Item = &Segment> {
        let (first, rest) = match at.block.checked_sub(1) {
            None => (self.first.get(at.index..), self.rest.as_slice()),
            Some(later) => {
                let rest = self.rest.get(later..).unwrap_or_default();
                let first = rest.first().and_then(|(_, list)| list.get(at.index..));
                (first, rest.get(1..).unwrap_or_default())
            }
        };
        let rest = rest.iter().flat_map(|(_, list)| list.iter());
        let all = first.unwrap_or_default().iter().chain(rest);
        all.take_while(move |segment| segment.start < end).inspect(|_| steps::count())
    }

    /// Inserts a segment that overlaps no other, at the position that [`seek`](Self::seek) returned.
    pub(super) fn insert(&mut self, at: Position, segment: Segment) {
        steps::count();
        let Position { mut block, mut index } = at;
        if index == 0
            && let Some(before) = block.checked_sub(1)
            && self.rest.get(before).is_some_and(|(start, _)| segment.start < *start)
        {
            (block, index) = (before, usize::MAX);
        }
        let is_last = block == self.rest.len();
        let Some(list) = self.block_mut(block) else { return };
        index = index.min(list.len());
        if list.len() < BLOCK_CAPACITY {
            list.insert(index, segment);
        } else if is_last && index == list.len() {
            // Appending at growing addresses keeps blocks full.
            let mut list = Block::with_capacity(BLOCK_CAPACITY);
            let start = segment.start;
            list.push(segment);
            self.rest.push((start, list));
            self.sweep_at = self.sweep_at.min(0) - 2;
        } else {
            let mut upper = Block::with_capacity(BLOCK_CAPACITY);
            upper.extend(list.drain(BLOCK_CAPACITY / 2..));
            match index.checked_sub(BLOCK_CAPACITY / 2) {
                Some(index) if index > 0 => upper.insert(index, segment),
                _ => list.insert(index, segment),
            }
            if let Some(start) = upper.first().map(|first| first.start) {
                self.rest.insert(block, (start, upper));
                self.sweep_at = self.sweep_at.min(0) - 2;
            }
        }
    }

    /// Removes a block if it is empty. Returns whether it was.
    pub(super) fn drop_empty(&mut self, block: usize) -> bool {
        let is_empty = self.block(block).is_some_and(SmallVec::is_empty);
        if is_empty && !self.rest.is_empty() {
            let (_, next) = self.rest.remove(block.saturating_sub(1));
            if block == 0 {
                self.first = next;
            }
        }
        is_empty
    }

    /// Merges a segment into the one before it, if [possible](Segment::can_merge). Returns the uses of the
    /// removed segment.
    pub(super) fn merge(&mut self, at: Position) -> Option<Uses> {
        let list = self.block_mut(at.block)?;
        let [before, segment] = list.get_mut(at.index.checked_sub(1)?..=at.index)? else { return None };
        if !before.can_merge(segment) {
            return None;
        }
        before.end = segment.end;
        Some(list.remove(at.index).uses)
    }
}
