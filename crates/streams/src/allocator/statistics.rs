//! Statistics of an allocator.

use super::{
    allocate::coalesce::Locked,
    arena::{
        ReuseCounts,
        blocks::{Node, State},
        size_class_counts::CLASSES,
    },
    shared::Shared,
};

/// A snapshot of an allocator's statistics.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct AllocatorStatistics {
    /// Bytes in live blocks, after rounding.
    pub in_use: u64,
    /// Bytes requested for live blocks.
    pub requested: u64,
    /// Number of live blocks.
    pub live_blocks: u64,
    /// Number of freed blocks that still wait for work in flight, as far as known without polling.
    pub pending_free_blocks: u64,
    /// Sum of the streams' peaks of `in_use`: exact for one stream, an upper bound for several. Includes cached idle
    /// buffers, unlike the other numbers.
    pub peak_in_use: u64,
    /// Bytes reserved from the upstream resource.
    pub reserved: u64,
    /// Peak of `reserved`.
    pub peak_reserved: u64,
    /// Number of segments.
    pub segments: u64,
    /// Number of segments without live or pending blocks.
    pub unused_segments: u64,
    /// Number of streams served.
    pub streams: u64,
    /// Bytes in free blocks, including those still used by streams.
    pub free: u64,
    /// Bytes of the largest free block, with neighbours coalesced.
    pub largest_free: u64,
    /// Fraction of the free bytes outside the largest free block: 0 if all are in it.
    pub fragmentation: f64,
    /// Requests by source.
    pub served: ReuseCounts,
    /// Size classes with allocations.
    pub classes: Vec<SizeClassStatistics>,
}

/// Statistics of one size class, a power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SizeClassStatistics {
    /// Maximum block size in bytes; the minimum is more than half of it.
    pub up_to: u64,
    /// Live blocks.
    pub live: u64,
    /// Total allocations.
    pub allocations: u64,
}

pub(super) fn of(shared: &Shared) -> AllocatorStatistics {
    use std::sync::atomic::Ordering::Relaxed;
    shared.empty_caches();
    let mut numbers = AllocatorStatistics {
        reserved: shared.reserved.load(Relaxed),
        peak_reserved: shared.peak_reserved.load(Relaxed),
        segments: shared.segments.lock().count() as u64,
        ..AllocatorStatistics::default()
    };
    let mut classes = [SizeClassStatistics::default(); CLASSES];
    let mut free: Vec<(u32, u64, u64)> = Vec::new();
    let mut used: Vec<u32> = Vec::new();
    for shard in &shared.shards {
        for (class, served) in classes.iter_mut().zip(shard.served()) {
            class.allocations += served;
            numbers.served.same_size += served;
        }
    }
    for Locked { state, .. } in shared.lock_all() {
        let counts = &state.blocks.counts;
        numbers.in_use += counts.in_use;
        numbers.requested += counts.requested;
        numbers.live_blocks += counts.live;
        numbers.peak_in_use += counts.peak;
        numbers.streams += u64::from(!matches!(state.owner, super::arenas::Owner::Vacant));
        for (class, class_counts) in classes.iter_mut().zip(&counts.classes) {
            class.live += class_counts.live;
            class.allocations += class_counts.allocations;
        }
        let served = &mut numbers.served;
        served.same_size += state.served.same_size;
        served.fitted += state.served.fitted;
        served.other_stream_complete += state.served.other_stream_complete;
        served.other_stream_waited += state.served.other_stream_waited;
        served.gathered += state.served.gathered;
        served.new_segment += state.served.new_segment;
        let waiting = state.blocks.iter().filter(|(_, node)| node.state == State::PendingFree);
        numbers.pending_free_blocks += waiting.count() as u64;
        let busy = |node: &Node| matches!(node.state, State::Live | State::PendingFree);
        used.extend(state.blocks.iter().filter(|(_, node)| busy(node)).map(|(_, node)| node.segment));
        let unused = state.blocks.iter().filter(|(_, node)| node.state != State::Live);
        free.extend(unused.map(|(_, node)| (node.segment, node.address, node.size)));
    }
    used.sort_unstable();
    used.dedup();
    numbers.unused_segments = numbers.segments.saturating_sub(used.len() as u64);
    free.sort_unstable();
    let beside = |one: &(u32, u64, u64), next: &(u32, u64, u64)| one.0 == next.0 && one.1 + one.2 == next.1;
    let joined = free.chunk_by(beside).map(|run| run.iter().map(|(.., size)| size).sum::<u64>());
    numbers.free = free.iter().map(|(.., size)| size).sum();
    numbers.largest_free = joined.max().unwrap_or(0);
    if numbers.free > 0 {
        numbers.fragmentation = 1.0 - numbers.largest_free as f64 / numbers.free as f64;
    }
    numbers.classes = classes
        .into_iter()
        .enumerate()
        .map(|(index, class)| SizeClassStatistics { up_to: 512 << index, ..class })
        .filter(|class| class.allocations > 0)
        .collect();
    numbers
}
