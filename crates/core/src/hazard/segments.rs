//! The uses of an allocation as disjoint ranges, ordered by address, in blocks of bounded length.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::{
    steps,
    uses::{Use, Uses},
};

/// Maximum number of segments in a block.
const BLOCK_CAPACITY: usize = 32;

/// Segments that a lookup checks one by one, from the last position on.
const NEAR: usize = 6;

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
    pub(super) fn get(&self, at: Position) -> Option<&Segment> {
        self.block(at.block)?.get(at.index)
    }

    /// Returns the position of the next segment, or of none.
    #[inline]
    pub(super) fn after(&self, Position { block, index }: Position) -> Position {
        match self.block(block) {
            Some(list) if index + 1 < list.len() || block >= self.rest.len() => {
                Position { block, index: index + 1 }
            }
            _ => Position { block: block + 1, index: 0 },
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

    /// Like [`seek`](Self::seek), but only looks at the last position and shortly after it.
    fn seek_near_last(&self, byte: usize) -> Option<Position> {
        let Position { block, index } = self.last;
        let list = self.block(block)?.get(index..)?;
        let follows = || match index.checked_sub(1) {
            None => block == 0,
            Some(before) => self.get(Position { block, index: before }).is_some_and(|one| one.end <= byte),
        };
        let near = list.iter().take(NEAR).position(|segment| byte < segment.end);
        let skipped = match (near, list) {
            (Some(0), [here, ..]) if here.start > byte && !follows() => return None,
            (Some(near), _) => near,
            (None, []) if block == self.rest.len() && follows() => 0,
            (None, [_, ..]) if block == self.rest.len() && list.len() <= NEAR => list.len(),
            _ => return None,
        };
        Some(Position { block, index: index + skipped })
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
        if self.beginning_at(range.start).is_none() {
            self.last = self.seek(range.start);
        }
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

    /// Takes out the block in which a segment with this byte is or would be, to rewrite its segments.
    pub(super) fn take(&mut self, byte: usize) -> Rewrite {
        let mut block = self.rest.partition_point(|(start, _)| *start <= byte);
        let reaches = |list: &Block| list.last().is_some_and(|last| last.end > byte);
        if let Some(before) = block.checked_sub(1)
            && self.block(before).is_some_and(reaches)
        {
            block = before;
        }
        let old = self.block_mut(block).map(std::mem::take).unwrap_or_default();
        let until = self.rest.get(block).map_or(usize::MAX, |(start, _)| *start);
        let new = Vec::with_capacity(old.len() + 8);
        Rewrite { blocks: block..block + 1, until, next: None, old: old.into_iter(), new }
    }

    /// Puts back rewritten segments.
    pub(super) fn put_back(&mut self, rewrite: Rewrite) {
        let Rewrite { blocks, next, old, mut new, .. } = rewrite;
        new.extend(next.into_iter().chain(old));
        let size = new.len().div_ceil(new.len().div_ceil(BLOCK_CAPACITY).max(1)).max(1);
        let mut others = Vec::new();
        while new.len() > size {
            let upper = new.split_off((new.len() - 1) / size * size);
            if let Some(first) = upper.first() {
                others.push((first.start, Block::from_vec(upper)));
            }
        }
        if !others.is_empty() {
            new.shrink_to_fit();
        }
        if let Some(block) = self.block_mut(blocks.start) {
            *block = Block::from_vec(new);
        }
        let (before, added) = (blocks.len() - 1, others.len());
        if before > 0 || added > 0 {
            self.rest.splice(blocks.start..blocks.end - 1, others.into_iter().rev());
            if let Some(grown) = added.checked_sub(before).filter(|grown| *grown > 0) {
                self.sweep_at = self.sweep_at.min(0) - 2 * grown as i64;
            }
        }
        // The last segment may begin after what was the next block's start.
        if let Some((start, next)) = self.rest.get_mut(blocks.start + added)
            && let Some(first) = next.first()
        {
            *start = first.start;
        }
        self.last = Position { block: blocks.start, index: 0 };
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

/// Segments that are being rewritten, in order: those of some blocks, which are empty meanwhile.
pub(super) struct Rewrite {
    blocks: Range<usize>,
    /// Where the next block begins.
    pub(super) until: usize,
    /// The next segment to be rewritten, and those after it.
    next: Option<Segment>,
    old: smallvec::IntoIter<[Segment; 1]>,
    new: Vec<Segment>,
}

impl Rewrite {
    /// Keeps the segments before a byte.
    pub(super) fn keep_before(&mut self, byte: usize) {
        while let Some(kept) = self.next.take().or_else(|| self.old.next()) {
            if kept.end > byte {
                self.next = Some(kept);
                break;
            }
            self.new.push(kept);
        }
    }

    /// Returns the next segment if it begins before `end`, the end of the range to be rewritten.
    pub(super) fn next(&mut self, segments: &mut Segments, end: usize) -> Option<Segment> {
        self.next = self.next.take().or_else(|| self.old.next());
        while self.next.is_none() && self.until <= end {
            let Some(list) = segments.block_mut(self.blocks.end) else { break };
            self.old = std::mem::take(list).into_iter();
            self.next = self.old.next();
            self.until = segments.rest.get(self.blocks.end).map_or(usize::MAX, |(start, _)| *start);
            self.blocks.end += 1;
        }
        steps::count();
        self.next.take_if(|next| next.start < end)
    }

    /// Puts back what is left of a segment that [`next`](Self::next) returned.
    pub(super) fn put_back(&mut self, rest: Segment) {
        self.next = Some(rest);
    }

    /// Adds a segment, which may be merged into the one before it. Returns the uses of one that was.
    pub(super) fn push(&mut self, segment: Segment) -> Option<Uses> {
        match self.new.last_mut() {
            Some(last) if last.can_merge(&segment) => {
                last.end = segment.end;
                Some(segment.uses)
            }
            _ => {
                self.new.push(segment);
                None
            }
        }
    }
}
