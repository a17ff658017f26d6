//! How much a load reads at once: slots that together stay in the processor's last-level cache, if it is large enough.

use std::{
    fs,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

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

/// Returns the bytes of last-level cache that the usable processors have, if the system says so.
fn last_level_cache() -> Option<usize> {
    static CACHE: OnceLock<Option<usize>> = OnceLock::new();
    *CACHE.get_or_init(|| {
        let usable = thread::available_parallelism().map_or(1, usize::from);
        cache_of(|file| fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/{file}")).ok(), usable)
    })
}

/// Reads the description of the first processor's last cache. `usable` processors have as many of these as they fill.
fn cache_of(read: impl Fn(&str) -> Option<String>, usable: usize) -> Option<usize> {
    const MOST_CACHES: usize = 16;
    let level = |index: &usize| read(&format!("index{index}/level"))?.trim().parse::<u32>().ok();
    let last = (0..MOST_CACHES).take_while(|index| level(index).is_some()).max_by_key(level)?;
    let size = bytes(read(&format!("index{last}/size"))?.trim())?;
    let sharing = read(&format!("index{last}/shared_cpu_list")).and_then(|list| processors(list.trim()));
    size.checked_mul(usable.div_ceil(sharing.unwrap_or(usable).max(1)))
}

/// Parses a size like `32768K`.
fn bytes(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|unit: char| !unit.is_ascii_digit());
    let unit = match text.get(digits.len()..)? {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit).filter(|size| *size > 0)
}

/// Counts the processors of a list like `0-7,16`.
fn processors(list: &str) -> Option<usize> {
    list.split(',').try_fold(0_usize, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
#[path = "../../tests/unit/shape.rs"]
mod tests;
