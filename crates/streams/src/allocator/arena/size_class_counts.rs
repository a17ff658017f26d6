//! Counts a stream's allocations by size class, under its arena's lock.

/// Size classes: powers of two from 512 bytes on.
pub(crate) const CLASSES: usize = 32;

/// Counts of one stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SizeClassCounts {
    pub(crate) in_use: u64,
    pub(crate) requested: u64,
    pub(crate) peak: u64,
    pub(crate) live: u64,
    pub(crate) classes: [Class; CLASSES],
}

/// Counts of one size class.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Class {
    pub(crate) live: u64,
    pub(crate) allocations: u64,
}

/// Returns the class of a rounded size: 0 for 512 bytes, each further one twice as large.
pub(crate) fn class(size: u64) -> usize {
    let above = size.saturating_sub(1) >> 9;
    ((u64::BITS - above.leading_zeros()) as usize).min(CLASSES - 1)
}

impl SizeClassCounts {
    pub(crate) fn count_allocation(&mut self, size: u64, requested: u64) {
        self.in_use += size;
        self.requested += requested;
        self.peak = self.peak.max(self.in_use);
        self.live += 1;
        let class = &mut self.classes[class(size)];
        class.live += 1;
        class.allocations += 1;
    }

    /// Reverts [`count_free`](Self::count_free), without counting an allocation.
    pub(crate) fn undo_free(&mut self, size: u64, requested: u64) {
        self.count_allocation(size, requested);
        self.classes[class(size)].allocations -= 1;
    }

    pub(crate) fn count_free(&mut self, size: u64, requested: u64) {
        self.in_use -= size;
        self.requested -= requested;
        self.live -= 1;
        self.classes[class(size)].live -= 1;
    }
}
