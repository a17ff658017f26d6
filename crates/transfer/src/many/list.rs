//! The pairs of a list: the caller's, or made of blocks.

use std::{borrow::Cow, ops::Deref};

use transload_core::PairList;

use super::Pair;

#[derive(Clone)]
pub(crate) enum List<'a> {
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
