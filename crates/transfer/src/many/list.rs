//! The pairs of a list: the caller's, or made of blocks.

use std::{borrow::Cow, ops::Deref};

use transload_core::{BlockList, PairList};

use super::Pair;

/// A list as the caller gave it.
#[derive(Clone)]
pub(crate) enum Listed<'a> {
    Pairs(Cow<'a, [Pair]>),
    Blocks(Box<BlockList>),
}

impl<'a> Listed<'a> {
    /// Returns the number of pairs.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Pairs(pairs) => pairs.len(),
            Self::Blocks(blocks) => blocks.len(),
        }
    }

    pub(super) fn into_pairs(self) -> List<'a> {
        match self {
            Self::Pairs(pairs) => List::Pairs(pairs),
            Self::Blocks(blocks) => List::Blocks(blocks.into_pairs()),
        }
    }
}

pub(super) enum List<'a> {
    Pairs(Cow<'a, [Pair]>),
    Blocks(PairList),
}

impl Deref for List<'_> {
    type Target = [Pair];

    #[inline]
    fn deref(&self) -> &[Pair] {
        match self {
            Self::Pairs(pairs) => pairs,
            Self::Blocks(pairs) => pairs,
        }
    }
}

impl List<'_> {
    pub(super) fn into_owned(self) -> List<'static> {
        match self {
            Self::Pairs(pairs) => List::Pairs(Cow::Owned(pairs.into_owned())),
            Self::Blocks(pairs) => List::Blocks(pairs),
        }
    }
}

/// What a group is submitted as.
#[derive(Clone, Copy)]
pub(super) enum Pieces<'a> {
    Pairs(&'a [Pair]),
    /// Without pairs, which takes less time.
    Blocks(&'a BlockList),
}

impl<'a> Pieces<'a> {
    /// Returns the first pair that is not empty, or the first pools.
    pub(super) fn first(self) -> Option<&'a Pair> {
        match self {
            Self::Pairs(pairs) => pairs.iter().find(|(src, _)| !src.is_empty()),
            Self::Blocks(blocks) => blocks.pools().first(),
        }
    }

    pub(super) fn pairs(self) -> Option<&'a [Pair]> {
        match self {
            Self::Pairs(pairs) => Some(pairs),
            Self::Blocks(_) => None,
        }
    }
}
