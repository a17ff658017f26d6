//! Device memory that prefetches may fill: the free bytes less a reserve.

use transload_core::MemoryInfo;

/// Number of reservations, successful or not, per query of the driver.
const QUERY_INTERVAL: u32 = 32;
/// Divisor of the device's total memory: this fraction stays free.
const RESERVE_DIVISOR: u64 = 32;

/// Free bytes as last queried, less what was reserved since.
#[derive(Debug, Default)]
pub(super) struct MemoryBudget {
    left: u64,
    /// Reservations until the next query.
    until_query: u32,
}

impl MemoryBudget {
    /// Reserves `bytes` and returns whether they fit.
    pub(super) fn try_reserve(&mut self, bytes: u64, query: impl FnOnce() -> Option<MemoryInfo>) -> bool {
        if self.until_query == 0 {
            // A failed query counts as no free memory.
            let free = query().map_or(0, |info| info.free.saturating_sub(info.total / RESERVE_DIVISOR));
            *self = Self { left: free, until_query: QUERY_INTERVAL };
        }
        self.until_query -= 1;
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/memory_budget.rs"]
mod tests;
