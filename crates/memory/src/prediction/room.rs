//! How much of the device's memory prefetches may fill: what is free, less a reserve.

use transload_core::MemoryInfo;

/// So many prefetches, or tries without room, share one question to the driver.
const ASKED_EVERY: u32 = 32;
/// This part of the device's memory stays free.
const RESERVE: u64 = 32;

/// An answer of the driver's, less what was sent since.
#[derive(Debug, Default)]
pub(super) struct Room {
    left: u64,
    /// Takings until the driver is asked again.
    fresh: u32,
}

impl Room {
    /// Takes room for so many bytes, and answers whether there was.
    pub(super) fn take(&mut self, bytes: u64, ask: impl FnOnce() -> Option<MemoryInfo>) -> bool {
        if self.fresh == 0 {
            // A device that does not answer has no room.
            let free = ask().map_or(0, |info| info.free.saturating_sub(info.total / RESERVE));
            *self = Self { left: free, fresh: ASKED_EVERY };
        }
        self.fresh -= 1;
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
#[path = "../../tests/unit/room.rs"]
mod tests;
