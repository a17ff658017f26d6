//! Boundaries of registered host memory in the process. The driver refuses a copy that crosses the end of a
//! registration, even into an adjacent one (driver 580).
//!
//! Every function may be called from any thread.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// Registrations by start address, with end and sequence number.
static REGISTERED: Mutex<BTreeMap<usize, (usize, u64)>> = Mutex::new(BTreeMap::new());

/// Records a registration and returns its sequence number.
pub(super) fn enter(start: usize, bytes: usize) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    REGISTERED.lock().insert(start, (start.saturating_add(bytes), number));
    number
}

/// Removes an ended registration, unless another one already started at the same address.
pub(super) fn leave(start: usize, number: u64) {
    let mut registered = REGISTERED.lock();
    if registered.get(&start).is_some_and(|(_, known)| *known == number) {
        registered.remove(&start);
    }
}

/// Returns the addresses within a range of host memory, in order, where registrations of this crate start or end. If
/// the driver refuses a copy of the range, copy the parts between them. Other users' registrations are not included.
#[must_use]
pub fn registration_edges(range: &Range<usize>) -> Vec<usize> {
    let within = |edge: &usize| range.start < *edge && *edge < range.end;
    let registered = REGISTERED.lock();
    // Registrations do not overlap, so their ends are sorted like their starts.
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
