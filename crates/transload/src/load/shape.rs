//! How much a load reads at once: slots that together stay in the processor's last-level cache, if it is large enough.

use std::sync::atomic::{AtomicUsize, Ordering};

use transload_executor::last_level_cache;

/// Built-in table, measured on H200 machines with 16 and 32 cores and a cache of 300 MiB: bytes of a slot for at least so many
/// readers. Fewer readers need smaller slots, or the link is idle while they read.
const SLOTS: [(usize, usize); 2] = [(12, 4 << 20), (0, 2 << 20)];
/// Smaller slots lose more by the cost of a copy than by leaving the cache. From the same measurement.
const LEAST_SLOT: usize = 1 << 20;
/// Most bytes of a load's staging buffers, but a few whatever their size, unless their number is set.
const MOST_STAGING: usize = 128 << 20;
const LEAST_BUFFERS: usize = 4;
/// Slots of a reader: one is read into while the other is in flight.
pub(super) const SLOTS_PER_READER: usize = 2;

/// The loads of this process that share the cache.
static LOADS: AtomicUsize = AtomicUsize::new(0);

/// Counts a load until dropped.
pub(super) struct ActiveLoad(());

impl ActiveLoad {
    pub(super) fn begin() -> Self {
        LOADS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

/// Returns how many bytes a reader should read at once now, for a load with so many readers. It changes with the number of loads.
pub(super) fn slot_now(readers: usize) -> usize {
    slot(readers, LOADS.load(Ordering::Relaxed), last_level_cache())
}

/// Returns the most staging buffers of `chunk` bytes for so many readers.
pub(super) fn buffers(readers: usize, chunk: usize) -> usize {
    (readers * SLOTS_PER_READER).min((MOST_STAGING / chunk.max(1)).max(LEAST_BUFFERS))
}

impl Drop for ActiveLoad {
    fn drop(&mut self) {
        LOADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the bytes of a slot: a power of two with which the slots of all loads fill at most half of the cache, or the least.
fn slot(readers: usize, loads: usize, cache: Option<usize>) -> usize {
    let most = SLOTS.iter().find(|(least, _)| readers >= *least).map_or(LEAST_SLOT, |(_, slot)| *slot);
    let slots = readers.max(1).saturating_mul(SLOTS_PER_READER).saturating_mul(loads.max(1));
    let share = cache.map_or(most, |cache| cache / 2 / slots).max(LEAST_SLOT);
    most.min(1 << share.ilog2())
}

#[cfg(test)]
#[path = "../../tests/unit/shape.rs"]
mod tests;
