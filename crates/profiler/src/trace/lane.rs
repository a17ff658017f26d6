//! Which slices can share one row of a viewer: those that nest or do not overlap.

use std::collections::VecDeque;

/// Slices that a lane remembers.
const RECENT: usize = 32;

/// The slices of one row. A viewer pairs beginnings and ends of a row in the order of their times, and at the same time
/// in the order in which they were written. A pair must come out as it was written.
pub(super) struct Lane {
    /// Beginning and end of the slices that end last, in the order of their ends.
    recent: VecDeque<(u64, u64)>,
    /// The last end of a forgotten slice. Nothing is known about the time before.
    forgotten: u64,
}

impl Lane {
    pub(super) fn new() -> Self {
        Self { recent: VecDeque::with_capacity(RECENT + 1), forgotten: 0 }
    }

    /// Enters a slice, unless it cannot share the row with earlier ones, or the earlier ones are forgotten.
    pub(super) fn try_insert(&mut self, begin: u64, end: u64) -> bool {
        // What ends before this slice begins cannot conflict, nor can anything that ended earlier still.
        let mut overlapping = self.recent.iter().rev().take_while(|(_, e)| *e > begin);
        if begin < self.forgotten || overlapping.any(|&earlier| conflicts(earlier, (begin, end))) {
            return false;
        }
        let later = self.recent.iter().rev().take_while(|(_, e)| *e > end).count();
        self.recent.insert(self.recent.len() - later, (begin, end));
        if self.recent.len() > RECENT
            && let Some((_, end)) = self.recent.pop_front()
        {
            self.forgotten = end;
        }
        true
    }
}

/// Returns whether a slice cannot be written after an earlier one that ends after it begins.
fn conflicts((earlier_begin, earlier_end): (u64, u64), (begin, end): (u64, u64)) -> bool {
    let before = end < earlier_begin;
    let inside = earlier_begin <= begin && end <= earlier_end;
    // With a common beginning, the one written first is the outer one.
    let around = begin < earlier_begin && earlier_end <= end;
    !(before || inside || around)
}
