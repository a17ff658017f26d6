//! Counts live objects created through a real driver, which keeps no such list.

use std::{collections::BTreeMap, sync::Once};

use parking_lot::Mutex;
use transload_cuda_sys::trace;

/// Live objects by class. Modules are not counted: a module whose kernel may still run is left to its context.
pub(super) type LiveCounts = BTreeMap<&'static str, i64>;

static LIVE: Mutex<LiveCounts> = Mutex::new(BTreeMap::new());

/// Returns the class of object that a driver function creates (1) or destroys (-1).
fn class_change(function: &str) -> Option<(&'static str, i64)> {
    Some(match function {
        "cuDevicePrimaryCtxRetain" => ("references to contexts", 1),
        "cuDevicePrimaryCtxRelease_v2" => ("references to contexts", -1),
        "cuStreamCreate" | "cuStreamCreateWithPriority" => ("streams", 1),
        "cuStreamDestroy_v2" => ("streams", -1),
        "cuEventCreate" => ("events", 1),
        "cuEventDestroy_v2" => ("events", -1),
        "cuMemAlloc_v2" | "cuMemAllocAsync" | "cuMemAllocFromPoolAsync" | "cuMemAllocManaged" => {
            ("device and managed allocations", 1)
        }
        "cuMemFree_v2" | "cuMemFreeAsync" => ("device and managed allocations", -1),
        "cuMemHostAlloc" | "cuMemAllocHost_v2" => ("pinned allocations", 1),
        "cuMemFreeHost" => ("pinned allocations", -1),
        "cuMemHostRegister_v2" => ("registered ranges", 1),
        "cuMemHostUnregister" => ("registered ranges", -1),
        "cuMemPoolCreate" => ("memory pools", 1),
        "cuMemPoolDestroy" => ("memory pools", -1),
        _ => return None,
    })
}

fn record(function: &'static str, code: u32) {
    if code == 0
        && let Some((class, by)) = class_change(function)
    {
        *LIVE.lock().entry(class).or_default() += by;
    }
}

/// Returns the live objects now; counts from the first call on.
pub(super) fn count() -> LiveCounts {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| trace::observe(record));
    LIVE.lock().clone()
}

/// Number of open checks, and the live objects before the first of them.
static OPEN: Mutex<(usize, LiveCounts)> = Mutex::new((0, BTreeMap::new()));

/// Opens a check. An object belongs to no particular fixture, so overlapping checks are merged.
pub(super) fn begin() {
    let now = count();
    let mut open = OPEN.lock();
    if open.0 == 0 {
        open.1 = now;
    }
    open.0 += 1;
}

/// Closes a check. If it was the last, returns the live objects before the first.
pub(super) fn end() -> Option<LiveCounts> {
    let mut open = OPEN.lock();
    open.0 -= 1;
    (open.0 == 0).then(|| std::mem::take(&mut open.1))
}

/// Returns the classes of which more objects are alive than before, with their current counts.
pub(super) fn excess_over(before: &LiveCounts) -> LiveCounts {
    let mut now = count();
    now.retain(|class, alive| *alive > before.get(class).copied().unwrap_or(0));
    now
}

#[cfg(test)]
#[path = "../../tests/unit/live.rs"]
mod tests;
