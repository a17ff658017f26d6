//! Counts what this process made through a real driver and has not given back, where the driver keeps no such list.

use std::{collections::BTreeMap, sync::Once};

use parking_lot::Mutex;
use transload_cuda_sys::trace;

/// How many are alive of each class. Modules are left out: one whose kernel may still run is left to its context.
pub(super) type LiveCounts = BTreeMap<&'static str, i64>;

static LIVE: Mutex<LiveCounts> = Mutex::new(BTreeMap::new());

/// The class of handle that a driver function makes (1) or gives back (-1).
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

/// What is alive now; counts from the first call on.
pub(super) fn count() -> LiveCounts {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| trace::observe(record));
    LIVE.lock().clone()
}

/// How many checks are open, and what was alive before the first of them.
static OPEN: Mutex<(usize, LiveCounts)> = Mutex::new((0, BTreeMap::new()));

/// Opens a check. What is alive belongs to no single fixture, so checks that overlap are one.
pub(super) fn begin() {
    let now = count();
    let mut open = OPEN.lock();
    if open.0 == 0 {
        open.1 = now;
    }
    open.0 += 1;
}

/// Closes a check. Returns what was alive before the first one if this is the last.
pub(super) fn end() -> Option<LiveCounts> {
    let mut open = OPEN.lock();
    open.0 -= 1;
    (open.0 == 0).then(|| std::mem::take(&mut open.1))
}

/// What there is more of now than before.
pub(super) fn excess_over(before: &LiveCounts) -> LiveCounts {
    let mut now = count();
    now.retain(|class, alive| *alive > before.get(class).copied().unwrap_or(0));
    now
}

#[cfg(test)]
#[path = "../../tests/unit/live.rs"]
mod tests;
