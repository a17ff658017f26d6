//! Lists of blocks of pools, chosen by index: checked and claimed by the indices, without a pair for each block.

use std::{iter, ops::Range};

use smallvec::SmallVec;

use crate::{
    Access, Claims, Error, ErrorKind, Fence, PairList, Queue, RawBuffer, Result, Timing, hazard::Claimed,
    submit::claim::WriteMode,
};

/// A side of a [`BlockList`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSide {
    /// The pools that are read.
    Source,
    /// The pools that are written.
    Destination,
}

/// Copies of equal blocks between pools, checked: for each source pool and its destination pool, block `from[i]` over block `to[i]`. Block
/// `i` begins at byte `i * block_bytes` of its pool. It keeps the pools alive.
#[derive(Clone, Debug, Default)]
pub struct BlockList {
    pools: Vec<(RawBuffer, RawBuffer)>,
    from: Vec<usize>,
    to: Vec<usize>,
    block_bytes: usize,
    /// The indices on both sides in order, neighbours joined.
    runs: [Vec<Range<usize>>; 2],
    /// Empty, with room for all pairs.
    pairs: PairList,
}

impl BlockList {
    /// Checks the blocks. The pools may overlap.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for different numbers of indices, and blocks of 0 bytes; [`ErrorKind::OutOfRange`] for a block that
    /// a pool does not have; [`ErrorKind::Overlap`] for a destination block that is given twice. Both name the index and its position.
    /// [`ErrorKind::OutOfMemory`] if the host has no memory for the [pairs](Self::into_pairs).
    pub fn new<'p>(
        pools: impl ExactSizeIterator<Item = (&'p RawBuffer, &'p RawBuffer)> + Clone,
        (from, to): (&[usize], &[usize]),
        block_bytes: usize,
    ) -> Result<Self> {
        let invalid = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        if from.len() != to.len() {
            let (from, to) = (from.len(), to.len());
            return invalid(format!(
                "{from} source blocks and {to} destination blocks; each block needs both"
            ));
        }
        if block_bytes == 0 {
            return invalid("blocks of 0 bytes; a block has at least 1".to_owned());
        }
        if pools.len() == 0 || from.is_empty() {
            // Without pools, nothing bounds the indices.
            return Ok(Self::default());
        }
        let within = |side: &str, pool: fn((&'p RawBuffer, &'p RawBuffer)) -> &'p RawBuffer, indices| {
            let least = pools.clone().map(|pools| pool(pools).len() / block_bytes).min().unwrap_or_default();
            runs(indices, least).ok_or_else(|| beyond(side, indices, least, block_bytes))
        };
        let (read, _) = within("source", |pools| pools.0, from)?;
        let (written, is_repeated) = within("destination", |pools| pools.1, to)?;
        if is_repeated && !crate::mutant!("core/blocks-apart") {
            return Err(repeated(to));
        }
        let pairs = PairList::try_with_capacity(pools.len().saturating_mul(from.len()))?;
        let pools = pools.map(|(src, dst)| (src.clone(), dst.clone())).collect();
        Ok(Self { pools, from: from.to_vec(), to: to.to_vec(), block_bytes, runs: [read, written], pairs })
    }

    /// Returns the pools: sources and destinations.
    #[must_use]
    pub fn pools(&self) -> &[(RawBuffer, RawBuffer)] {
        &self.pools
    }

    /// Returns the indices of the blocks in each pool: of the sources, and as many of the destinations.
    #[must_use]
    pub fn indices(&self) -> (&[usize], &[usize]) {
        (&self.from, &self.to)
    }

    /// Returns the length of a block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Returns the number of blocks of all pools.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pools.len().saturating_mul(self.from.len())
    }

    /// Returns whether there is no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of all blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.len() as u64).saturating_mul(self.block_bytes as u64)
    }

    /// Returns a range of its pairs by pools, as far as there are any: for each two pools their indices in the source, and as many in the
    /// destination. Pairs are in the order of the pools, then of the indices.
    pub fn parts(
        &self,
        pairs: Range<usize>,
    ) -> impl Iterator<Item = (&(RawBuffer, RawBuffer), &[usize], &[usize])> + Clone {
        let each = self.from.len().max(1);
        self.pools.iter().enumerate().skip(pairs.start / each).map_while(move |(at, pools)| {
            let begin = at * each;
            let part = pairs.start.saturating_sub(begin)..pairs.end.saturating_sub(begin).min(each);
            let (from, to) = (self.from.get(part.clone())?, self.to.get(part)?);
            (!from.is_empty()).then_some((pools, from, to))
        })
    }

    /// Returns how many stretches of memory the blocks of one side are, each of blocks that follow each other: in the order of the pairs, and at
    /// least so many in ascending order of the indices.
    #[must_use]
    pub fn stretches(&self, side: BlockSide) -> (usize, usize) {
        let ([read, written], from, to) = (&self.runs, &self.from, &self.to);
        let (indices, sorted) = match side {
            BlockSide::Source => (from, read),
            BlockSide::Destination => (to, written),
        };
        let pool = |pools| {
            let (src, dst): &(RawBuffer, RawBuffer) = pools;
            if side == BlockSide::Source { src } else { dst }
        };
        // Where a pool's last block ends, the next pool's first one may begin.
        let [end, begin] = [indices.last().map(|last| last + 1), indices.first().copied()]
            .map(|block| block.unwrap_or_default() * self.block_bytes);
        let neighbours = self.pools.iter().map(pool).zip(self.pools.iter().skip(1).map(pool));
        let joins = neighbours
            .filter(|(one, next)| one.id() == next.id() && one.offset() + end == next.offset() + begin)
            .count();
        let runs = indices.chunk_by(|one, next| one.checked_add(1) == Some(*next)).count();
        // A source block that is given twice ends a stretch.
        let least = self.pools.len().saturating_mul(sorted.len().saturating_sub(1)) + 1;
        (self.pools.len().saturating_mul(runs).saturating_sub(joins), least)
    }

    /// Returns them in ascending order of the indices of one side.
    #[must_use]
    pub fn sorted_by(&self, side: BlockSide) -> Self {
        let mut indices: Vec<_> = self.from.iter().copied().zip(self.to.iter().copied()).collect();
        indices.sort_unstable_by_key(|(from, to)| match side {
            BlockSide::Source => (*from, *to),
            BlockSide::Destination => (*to, *from),
        });
        let (from, to) = indices.into_iter().unzip();
        Self {
            pools: self.pools.clone(),
            from,
            to,
            block_bytes: self.block_bytes,
            runs: self.runs.clone(),
            pairs: PairList::default(),
        }
    }

    /// Returns them as pairs, in the order of the pools, then of the indices.
    #[must_use]
    pub fn into_pairs(self) -> PairList {
        let Self { pools, from, to, block_bytes, mut pairs, .. } = self;
        for (src, dst) in &pools {
            let starts = from.iter().zip(&to).map(|(from, to)| (from * block_bytes, to * block_bytes));
            // Each block lies within its pool: it was checked.
            let added = pairs.add((src, dst), block_bytes, starts);
            debug_assert!(added.is_ok(), "{added:?}");
        }
        pairs
    }

    /// Returns the ranges to claim, in order.
    ///
    /// # Errors
    /// `InvalidArgument` for a destination that may not be written; `Unsupported` if pools overlap: blocks of one may be blocks of another.
    pub(crate) fn ranges(&self) -> Result<Vec<Claimed<'_>>> {
        if self.pools.iter().any(|(_, dst)| !dst.is_writable()) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a destination pool's memory is not writable",
            ));
        }
        let [read, written] = &self.runs;
        let sides = self.pools.iter();
        let mut sides: SmallVec<[_; 2]> =
            sides.flat_map(|(src, dst)| [(src, Access::Read, read), (dst, Access::Write, written)]).collect();
        sides.sort_unstable_by_key(|(pool, ..)| (pool.id(), pool.offset()));
        let pairs = sides.iter().zip(sides.iter().skip(1));
        let mut neighbours = pairs.map(|((one, ..), (next, ..))| (*one, *next));
        if neighbours.any(|(one, next)| one.overlaps(next)) && !crate::mutant!("core/pools-apart") {
            let text = "pools overlap; copy the blocks as pairs, which are compared one by one";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let mut ranges = Vec::with_capacity(sides.iter().map(|(.., runs)| runs.len()).sum());
        for (buffer, access, runs) in sides {
            let byte = |block: usize| buffer.offset() + block * self.block_bytes;
            ranges.extend(runs.iter().map(|run| {
                let range = byte(run.start)..byte(run.end);
                Claimed { buffer, range, access, ticket: None }
            }));
        }
        Ok(ranges)
    }
}

/// Like [`submit`](crate::submit) of a batch in place, for a list of blocks.
///
/// # Errors
/// Like `submit`. [`ErrorKind::Unsupported`] if the queue [takes no blocks](Queue::enqueue_blocks) or pools overlap: submit their pairs.
pub fn submit_blocks(queue: &dyn Queue, blocks: &BlockList, timing: Timing) -> Result<Fence> {
    queue.prepare_batch(blocks.len(), blocks.bytes());
    let mut claims = Claims::none(WriteMode::Replace);
    claims.add_ranges(|| blocks.ranges(), Some(queue.timeline()))?;
    claims.wait_for_foreign_fences(queue);
    // SAFETY: the claims block every conflicting use until the fence is committed; from then on the fence does, and keeps the memory
    // alive. The pools are apart.
    let enqueued = unsafe { queue.enqueue_blocks(blocks, claims.after(), timing) };
    // SAFETY: it is the queue's error.
    let fence = enqueued.inspect_err(|error| unsafe { claims.fail(error) })?;
    let fence = claims.inherit(fence);
    // SAFETY: a queue's fence completes after the operation, which waits for `after`; fences removed from that were complete.
    unsafe { claims.commit(&fence) };
    Ok(fence)
}

/// Returns the error of an index that is not below `blocks`.
#[cold]
fn beyond(side: &str, indices: &[usize], blocks: usize, bytes: usize) -> Error {
    let position = indices.iter().position(|index| *index >= blocks).unwrap_or_default();
    let index = indices.get(position).copied().unwrap_or_default();
    let text = format!(
        "{side} block {index}, at position {position}, is not in each pool: the smallest has {blocks} blocks of {bytes} bytes; use an index below {blocks}"
    );
    Error::new(ErrorKind::OutOfRange, text)
}

/// Returns the indices in order, neighbours joined, and whether any is given twice: by a bitmap of the `blocks`, or by sorting where that
/// would be much longer than the indices. `None` if one is not below `blocks`.
fn runs(indices: &[usize], blocks: usize) -> Option<(Vec<Range<usize>>, bool)> {
    let first = indices.first().copied().unwrap_or_default();
    if let Some(end) = first.checked_add(indices.len())
        && indices.iter().zip(first..end).all(|(index, next)| *index == next)
    {
        return (end <= blocks).then(|| (iter::once(first..end).collect(), false));
    }
    let longest = 2 * indices.len() + 64;
    let mut bounds = 0..blocks;
    if blocks / 64 >= longest {
        // Of all at once: finding the first beyond would take longer.
        let (least, largest) = indices
            .iter()
            .fold((usize::MAX, 0), |(least, largest), index| (least.min(*index), largest.max(*index)));
        if largest >= blocks {
            return None;
        }
        bounds = least..largest + 1;
    }
    // One more, in which the last run ends.
    let words = bounds.len() / 64 + 1;
    if words > longest {
        return Some(sorted_runs(indices.to_vec()));
    }
    let (mut words, mut repeated) = (vec![0_u64; words], 0);
    for index in indices {
        let at = index.wrapping_sub(bounds.start);
        let word = words.get_mut(at / 64).filter(|_| *index < bounds.end)?;
        let bit = 1 << (at % 64);
        repeated |= *word & bit;
        *word |= bit;
    }
    let (mut runs, mut last, mut begun) = (Vec::new(), 0, None);
    for (at, word) in words.into_iter().enumerate() {
        // A bit for each index that differs from the one before it.
        let mut edges = word ^ (word << 1 | last);
        last = word >> 63;
        while edges != 0 {
            let index = bounds.start + at * 64 + edges.trailing_zeros() as usize;
            edges &= edges - 1;
            match begun.take() {
                None => begun = Some(index),
                Some(start) => runs.push(start..index),
            }
        }
    }
    Some((runs, repeated != 0))
}

fn sorted_runs(mut indices: Vec<usize>) -> (Vec<Range<usize>>, bool) {
    indices.sort_unstable();
    let (mut runs, mut is_repeated) = (Vec::<Range<usize>>::new(), false);
    for index in indices {
        match runs.last_mut() {
            Some(last) if last.end == index => last.end += 1,
            Some(last) if last.end > index => is_repeated = true,
            _ => runs.push(index..index + 1),
        }
    }
    (runs, is_repeated)
}

#[cold]
fn repeated(to: &[usize]) -> Error {
    let mut sorted: Vec<_> = to.iter().copied().zip(0_usize..).collect();
    sorted.sort_unstable();
    let pairs = sorted.iter().zip(sorted.iter().skip(1));
    let again = pairs.filter(|(one, next)| one.0 == next.0).map(|(_, next)| (next.1, next.0)).min();
    let (position, index) = again.unwrap_or_default();
    let first = to.iter().position(|other| *other == index).unwrap_or_default();
    let text = format!(
        "destination block {index} is given twice, at positions {first} and {position}; give each block once"
    );
    Error::new(ErrorKind::Overlap, text)
}

#[cfg(test)]
#[path = "../../tests/unit/blocks.rs"]
mod tests;
