//! How much of the device's memory prefetches may fill: what is free, less a reserve.

use transload_core::MemoryInfo;

/// So many prefetches, or tries without room, share one question to the driver.
const QUERY_INTERVAL: u32 = 32;
/// This part of the device's memory stays free.
const RESERVE_DIVISOR: u64 = 32;

/// An answer of the driver's, less what was sent since.
#[derive(Debug, Default)]
pub(super) struct MemoryBudget {
    left: u64,
    /// Takings until the driver is asked again.
    until_query: u32,
}

impl MemoryBudget {
    /// Takes room for so many bytes, and answers whether there was.
    pub(super) fn try_reserve(&mut self, bytes: u64, query: impl FnOnce() -> Option<MemoryInfo>) -> bool {
        if self.until_query == 0 {
            // A device that does not answer has no room.
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
