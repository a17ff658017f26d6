//! What a staged transfer copies: pairs, whose bytes are laid end to end and cut into chunks.

use std::ops::Range;

use smallvec::SmallVec;
use transload_core::{PairList, RawBuffer, Result};

/// Sources and destinations of equal lengths, none empty.
#[derive(Debug)]
pub(crate) struct Pieces {
    pairs: PairList,
    /// Where the bytes of each pair end.
    ends: SmallVec<[usize; 1]>,
}

/// Bytes of one pair that lie in a chunk.
pub(super) struct Piece<'a> {
    pub(super) src: &'a RawBuffer,
    pub(super) dst: &'a RawBuffer,
    /// Their range in both.
    pub(super) range: Range<usize>,
    /// Where they begin in the chunk.
    pub(super) at: usize,
}

impl Pieces {
    /// One pair.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](transload_core::ErrorKind) if the destination is shorter than the source.
    pub(crate) fn one(src: &RawBuffer, dst: &RawBuffer) -> Result<Self> {
        let mut pairs = PairList::with_capacity(1);
        pairs.add((src, dst), src.len(), [(0, 0)])?;
        Ok(Self { pairs, ends: SmallVec::from_iter([src.len()]) })
    }

    /// All pairs of a checked list that are not empty.
    pub(crate) fn all(list: &[(RawBuffer, RawBuffer)]) -> Self {
        let (mut pairs, mut ends) =
            (PairList::with_capacity(list.len()), SmallVec::with_capacity(list.len()));
        list.split(|(src, _)| src.is_empty()).for_each(|stretch| pairs.extend_from_slice(stretch));
        let mut end = 0_usize;
        for (src, _) in pairs.iter() {
            end = end.saturating_add(src.len());
            ends.push(end);
        }
        Self { pairs, ends }
    }

    /// Returns the bytes of all.
    pub(super) fn bytes(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    pub(super) fn pairs(&self) -> &[(RawBuffer, RawBuffer)] {
        &self.pairs
    }

    /// Returns the pair if there is only one.
    pub(super) fn single(&self) -> Option<&(RawBuffer, RawBuffer)> {
        self.pairs.first().filter(|_| self.pairs.len() == 1)
    }

    /// Returns what lies in a chunk, in order.
    pub(super) fn within(&self, chunk: &Range<usize>) -> impl Iterator<Item = Piece<'_>> + use<'_> {
        let Range { start, end } = *chunk;
        let first = self.ends.partition_point(|end| *end <= start);
        let pairs = self.pairs.iter().zip(&self.ends).skip(first);
        pairs.map_while(move |((src, dst), pair_end)| {
            let pair_start = pair_end - src.len();
            (pair_start < end).then(|| {
                let (from, to) = (pair_start.max(start), (*pair_end).min(end));
                Piece { src, dst, range: from - pair_start..to - pair_start, at: from - start }
            })
        })
    }
}
