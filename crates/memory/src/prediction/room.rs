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
mod tests {
    use super::*;

    const INFO: MemoryInfo = MemoryInfo { free: 1000, total: 3200 };

    #[test]
    fn what_is_sent_counts_until_the_driver_is_asked_again() {
        let (mut room, mut asked) = (Room::default(), 0);
        let mut take = |bytes| {
            room.take(bytes, || {
                asked += 1;
                Some(INFO)
            })
        };
        assert!(!take(901), "100 are kept back");
        assert!(take(500) && take(400) && !take(1));
        for _ in 4..ASKED_EVERY {
            assert!(!take(1));
        }
        assert!(take(900));
        assert_eq!(asked, 2);
    }

    #[test]
    fn where_the_driver_does_not_answer_nothing_is_sent() {
        assert!(!Room::default().take(1, || None));
    }
}
