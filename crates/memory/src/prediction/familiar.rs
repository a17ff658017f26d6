//! Memory that is known to lie on the device and that nobody else used since: a launch of nothing else needs no prediction.

use std::{
    hash::{Hash, Hasher},
    ops::Range,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use transload_core::{BufferId, DeviceId, RawBuffer};

/// Allocations, each in the slot of its number: those that were made one after another never share one.
const SLOTS: usize = 1024;
/// Ranges of an allocation that are found without asking.
const RANGES: usize = 3;

/// What was declared so far, and since which move of the allocation from one user to another.
///
/// It takes no lock, and no instruction that processors would have to agree about. Where several threads declare at once,
/// bounds of two ranges may be mixed, which costs page faults.
#[derive(Debug)]
pub(super) struct Familiar {
    /// Launches in a row of nothing but familiar memory, up to `long`.
    in_a_row: AtomicU32,
    /// After so many, those that follow are passed over: what was predicted has been used by then.
    long: u32,
    /// Ranges of launches that were passed over.
    passed: AtomicU64,
    slots: Box<[Slot]>,
    device: DeviceId,
}

/// One line of the processor's cache.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    /// The allocation's number, cut; 0 for none.
    number: AtomicU32,
    /// Which range gives way next.
    turn: AtomicU32,
    /// The allocation's moves, those of its declared uses among them.
    moves: AtomicU64,
    /// Empty ones at first.
    ranges: [(AtomicUsize, AtomicUsize); RANGES],
}

impl Familiar {
    /// Where so many predictions may be open at once.
    pub(super) fn new(device: DeviceId, depth: usize) -> Self {
        Self {
            in_a_row: AtomicU32::new(0),
            long: u32::try_from(depth).unwrap_or(u32::MAX),
            passed: AtomicU64::new(0),
            slots: std::iter::repeat_with(Slot::default).take(SLOTS).collect(),
            device,
        }
    }

    /// Declares the ranges of one launch, before it is enqueued. Answers whether it can be passed over: all of it is
    /// familiar, and so was all of several launches before.
    ///
    /// `there` answers what is known to lie on the device around a range, if the range does.
    #[inline]
    pub(super) fn declare<'a>(
        &self,
        ranges: impl Iterator<Item = &'a RawBuffer> + Clone,
        there: impl Fn(&RawBuffer) -> Option<Range<usize>>,
    ) -> bool {
        let mut count = 0;
        let known = ranges.clone().all(|range| {
            count += 1;
            self.knows(range, &there)
        });
        if count == 0 {
            return true;
        }
        let before = self.in_a_row.load(Ordering::Relaxed);
        if !known {
            ranges.for_each(|range| self.begin(range));
        }
        if known && before >= self.long {
            self.passed.store(self.passed().wrapping_add(count), Ordering::Relaxed);
            return true;
        }
        self.in_a_row.store(if known { before + 1 } else { 0 }, Ordering::Relaxed);
        false
    }

    /// The allocation is prefetched: the next launch that uses it is looked at, whether or not what was declared before was
    /// enqueued.
    pub(super) fn forget(&self, buffer: BufferId) {
        let number = number_of(buffer);
        if let Some(slot) = self.slot(number).filter(|slot| slot.is_of(number)) {
            slot.number.store(0, Ordering::Relaxed);
        }
    }

    /// How many ranges were passed over.
    pub(super) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    #[inline]
    fn slot(&self, number: u32) -> Option<&Slot> {
        self.slots.get(number as usize % SLOTS)
    }

    #[inline]
    fn knows(&self, range: &RawBuffer, there: impl Fn(&RawBuffer) -> Option<Range<usize>>) -> bool {
        let number = number_of(range.id());
        let Some(slot) = self.slot(number).filter(|slot| slot.is_of(number)) else { return false };
        slot.moves.load(Ordering::Relaxed) == range.moves_until_use_by(self.device)
            && (slot.has(range) || there(range).is_some_and(|around| slot.keep(&around)))
    }

    /// Brings the slot up to where the allocation is by now.
    fn begin(&self, range: &RawBuffer) {
        let number = number_of(range.id());
        let Some(slot) = self.slot(number) else { return };
        let moves = range.moves_until_use_by(self.device);
        if number == 0 || slot.is_of(number) && slot.moves.load(Ordering::Relaxed) == moves {
            return;
        }
        slot.moves.store(moves, Ordering::Relaxed);
        slot.ranges.iter().for_each(|(_, end)| end.store(0, Ordering::Relaxed));
        slot.number.store(number, Ordering::Relaxed);
    }
}

impl Slot {
    #[inline]
    fn is_of(&self, number: u32) -> bool {
        number != 0 && self.number.load(Ordering::Relaxed) == number
    }

    #[inline]
    fn has(&self, range: &RawBuffer) -> bool {
        let (first, last) = (range.offset(), range.offset().saturating_add(range.len()));
        self.ranges
            .iter()
            .any(|(start, end)| start.load(Ordering::Relaxed) <= first && last <= end.load(Ordering::Relaxed))
    }

    /// Answers `true`.
    fn keep(&self, range: &Range<usize>) -> bool {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        if let Some((start, end)) = self.ranges.get(turn as usize % RANGES) {
            start.store(range.start, Ordering::Relaxed);
            end.store(range.end, Ordering::Relaxed);
        }
        true
    }
}

/// The number behind an identity, cut: they are counted up.
#[inline]
fn number_of(buffer: BufferId) -> u32 {
    let mut number = Number(0);
    buffer.hash(&mut number);
    number.finish() as u32
}

struct Number(u64);

impl Hasher for Number {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
