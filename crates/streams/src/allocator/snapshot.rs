//! Every segment and block at one moment, as values that serde writes.

use serde::Serialize;

use super::{arenas::Owner, blocks, gather::each_arena, shared::Shared};

/// What an allocator holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AllocatorSnapshot {
    /// Whose memory, and of what kind.
    pub place: String,
    /// Segments by address.
    pub segments: Vec<SegmentSnapshot>,
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SegmentSnapshot {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its blocks by address.
    pub blocks: Vec<BlockSnapshot>,
}

/// One block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BlockSnapshot {
    /// Where it begins.
    pub address: u64,
    /// Bytes, as rounded.
    pub bytes: u64,
    /// What a live block was asked for.
    pub requested: u64,
    /// What it is.
    pub state: BlockState,
    /// Numbers the allocator's streams in the order in which they came.
    pub stream: u64,
    /// Whether that stream is gone.
    pub stream_is_gone: bool,
}

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BlockState {
    /// Allocated.
    Live,
    /// Free in the order of its stream.
    Free,
    /// Free once other streams have done what they do with it; of host memory, once its own has.
    Waiting,
}

pub(super) fn of(shared: &Shared) -> AllocatorSnapshot {
    shared.empty_caches();
    let mut all = Vec::new();
    each_arena(shared, |_, state| {
        for (_, node) in state.blocks.iter() {
            let kind = match node.state {
                blocks::State::Live => BlockState::Live,
                blocks::State::Waiting => BlockState::Waiting,
                _ => BlockState::Free,
            };
            let block = BlockSnapshot {
                address: node.address,
                bytes: node.size,
                requested: if kind == BlockState::Live { node.requested } else { 0 },
                state: kind,
                stream: state.life,
                stream_is_gone: !matches!(state.owner, Owner::Stream(_)),
            };
            all.push((node.segment, block));
        }
    });
    let mut segments: Vec<_> = shared
        .segments
        .lock()
        .iter()
        .map(|(number, segment)| {
            let of_it = all.iter().filter(|(of, _)| *of == number);
            let mut blocks: Vec<_> = of_it.map(|(_, block)| block.clone()).collect();
            blocks.sort_by_key(|block| block.address);
            SegmentSnapshot { address: segment.base, bytes: segment.size, blocks }
        })
        .collect();
    segments.sort_by_key(|segment| segment.address);
    AllocatorSnapshot { place: shared.upstream.place().to_string(), segments }
}
