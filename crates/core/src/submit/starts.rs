//! The order of ranges by a table of their beginnings: at most one begins in each slot, which is no longer than any of them.

/// Slots that a table may have for each range, and besides.
const SLOTS_PER_RANGE: usize = 4;
const FEW_SLOTS: usize = 64;

/// Numbers of ranges of an allocation, by where they begin.
#[derive(Debug)]
pub(super) struct Starts {
    /// The first slot's first byte.
    begin: usize,
    /// Binary logarithm of a slot's bytes.
    shift: u32,
    /// A number and one; 0 for none.
    slots: Vec<u32>,
}

impl Starts {
    /// Returns an empty table for so many ranges of at least `shortest` bytes between two bytes, unless it would be much longer than a list
    /// of them.
    pub(super) fn new(begin: usize, end: usize, shortest: usize, ranges: usize) -> Option<Self> {
        let shift = shortest.checked_ilog2()?;
        let slots = (end.saturating_sub(begin) >> shift) + 1;
        let is_short = slots <= ranges.saturating_mul(SLOTS_PER_RANGE).saturating_add(FEW_SLOTS);
        is_short.then(|| Self { begin, shift, slots: vec![0; slots] })
    }

    /// Adds a range with a number of less than `u32::MAX`. Returns whether no other one begins in its slot, which would overlap it.
    pub(super) fn add(&mut self, start: usize, number: u32) -> bool {
        let slot = self.slots.get_mut(start.wrapping_sub(self.begin) >> self.shift);
        slot.is_some_and(|slot| {
            std::mem::replace(slot, number.wrapping_add(1)) == 0 || crate::mutant!("core/starts-apart")
        })
    }

    /// Returns the numbers in the order of their ranges.
    pub(super) fn in_order(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().filter(|slot| **slot != 0).map(|slot| slot - 1)
    }
}
