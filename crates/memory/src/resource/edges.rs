//! Where registered host memory begins and ends, in the whole process: a copy that begins in a registration and leaves it is
//! refused by the driver (seen on driver 580, also where the next registration adjoins).
//!
//! Every function may be called from any thread.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// Beginnings of what this crate has registered, with the end and the number of each.
static REGISTERED: Mutex<BTreeMap<usize, (usize, u64)>> = Mutex::new(BTreeMap::new());

/// Notes a registration; answers its number.
pub(super) fn enter(start: usize, bytes: usize) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    REGISTERED.lock().insert(start, (start.saturating_add(bytes), number));
    number
}

/// Forgets a registration that has ended: by then another thread may have made the next one there.
pub(super) fn leave(start: usize, number: u64) {
    let mut registered = REGISTERED.lock();
    if registered.get(&start).is_some_and(|(_, known)| *known == number) {
        registered.remove(&start);
    }
}

/// The addresses within a range of host memory, in order, where a registration of this crate's begins or ends. Copies of the
/// parts between them are what the driver takes where it refuses one of the whole. Registrations of others are not in it.
#[must_use]
pub fn registration_edges(range: &Range<usize>) -> Vec<usize> {
    let within = |edge: &usize| range.start < *edge && *edge < range.end;
    let registered = REGISTERED.lock();
    // Registrations do not overlap, so all that begin before the last one that is not beyond the range end before it.
    let touching = registered.range(..range.end).rev().take_while(|(_, (end, _))| *end > range.start);
    let mut edges: Vec<usize> =
        touching.flat_map(|(start, (end, _))| [*start, *end]).filter(within).collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

#[cfg(test)]
#[path = "../../tests/unit/edges.rs"]
mod tests;
