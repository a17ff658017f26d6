//! The size of the processor's last-level cache.

use std::{fs, sync::OnceLock, thread};

/// Returns the bytes of last-level cache that the processors usable by this process have, if the system says so: as Linux does.
#[must_use]
pub fn last_level_cache() -> Option<usize> {
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
#[path = "../tests/unit/last_level_cache.rs"]
mod tests;
