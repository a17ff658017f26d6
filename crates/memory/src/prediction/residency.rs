//! What is known to lie in the device's memory already, so that it need not be prefetched again.

use std::ops::Range;

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{DeviceId, RawBuffer};

use super::known::ByBuffer;

/// How many allocations are remembered; beyond that all are forgotten, which costs a prefetch each.
const MOST: usize = 1024;
/// How many ranges of an allocation are remembered, those that touch each other taken together.
const MOST_RANGES: usize = 1024;

/// Ranges of unified memory that prefetches and launches of one owner left on a device. As soon as anybody elsewhere used the
/// allocation (the host, another device, a prefetch to there) nothing of it is known any more. Work of the device itself takes
/// nothing away, whoever enqueues it. Nothing is known of uses that go around the library, nor of pages that a full device gave
/// up: those cost page faults, never wrong bytes.
///
/// Usable from any thread.
#[derive(Debug)]
pub struct DeviceResidency {
    device: DeviceId,
    known: Mutex<ByBuffer<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// The allocation's moves, that of the owner's next use among them.
    moves: u64,
    /// In order, and no two touch each other.
    ranges: SmallVec<[Range<usize>; 2]>,
}

impl DeviceResidency {
    /// Of nothing yet.
    #[must_use]
    pub fn new(device: DeviceId) -> Self {
        Self { device, known: Mutex::default() }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The buffer is about to be used there: answers whether it lies there already. Otherwise it is to be prefetched first, or
    /// the use brings it by page faults.
    pub fn expect(&self, buffer: &RawBuffer) -> bool {
        let range = range_of(buffer);
        let moves = buffer.moves_until_use_by(self.device);
        let mut all = self.known.lock();
        if all.len() >= MOST && !all.contains_key(&buffer.id()) {
            all.clear();
        }
        let known = all.entry(buffer.id()).or_default();
        if known.moves != moves {
            *known = Known { moves, ranges: SmallVec::new() };
        }
        let there = known.around(&range).is_some();
        if !there {
            known.add(range);
        }
        there
    }

    /// The buffer goes elsewhere, or what was expected did not happen. What is known of the rest of its allocation stays.
    pub fn forget(&self, buffer: &RawBuffer) {
        if let Some(known) = self.known.lock().get_mut(&buffer.id()) {
            known.remove(&range_of(buffer));
        }
    }

    /// What lies there around the buffer, if the buffer does, as far as was noted: uses of somebody else are not looked for.
    pub(super) fn around(&self, buffer: &RawBuffer) -> Option<Range<usize>> {
        self.known.lock().get(&buffer.id())?.around(&range_of(buffer)).cloned()
    }
}

fn range_of(buffer: &RawBuffer) -> Range<usize> {
    buffer.offset()..buffer.offset().saturating_add(buffer.len())
}

impl Known {
    fn around(&self, range: &Range<usize>) -> Option<&Range<usize>> {
        let at = self.ranges.partition_point(|there| there.end < range.end);
        self.ranges.get(at).filter(|there| there.start <= range.start)
    }

    fn remove(&mut self, range: &Range<usize>) {
        let from = self.ranges.partition_point(|there| there.end <= range.start);
        let to = self.ranges.partition_point(|there| there.start < range.end);
        let Some(cut) = self.ranges.get(from..to) else { return };
        let ends =
            cut.first().zip(cut.last()).map(|(first, last)| [first.start..range.start, range.end..last.end]);
        let left: SmallVec<[Range<usize>; 2]> =
            ends.into_iter().flatten().filter(|left| left.start < left.end).collect();
        self.ranges.drain(from..to);
        self.ranges.insert_many(from, left);
    }

    fn add(&mut self, mut range: Range<usize>) {
        // Those that it touches become one with it.
        let from = self.ranges.partition_point(|there| there.end < range.start);
        let to = self.ranges.partition_point(|there| there.start <= range.end);
        for there in self.ranges.drain(from..to) {
            range = there.start.min(range.start)..there.end.max(range.end);
        }
        if self.ranges.len() >= MOST_RANGES {
            self.ranges.clear();
        }
        self.ranges.insert(from.min(self.ranges.len()), range);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_that_touch_are_one_and_too_many_are_forgotten() {
        let mut known = Known::default();
        for index in [0, 2, 1, 4] {
            known.add(index * 10..(index + 1) * 10);
        }
        assert_eq!(known.ranges.as_slice(), [0..30, 40..50]);
        known.add(25..45);
        assert_eq!((known.ranges.len(), known.ranges[0].clone()), (1, 0..50));
        for index in 1..=MOST_RANGES {
            known.add(index * 100..index * 100 + 1);
        }
        let last = MOST_RANGES * 100;
        assert_eq!((known.ranges.len(), known.ranges[0].clone()), (1, last..last + 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_known_are_the_bytes_that_were_added_and_not_removed_since(
            changed in prop::collection::vec((any::<bool>(), 0..100_usize, 1..20_usize), 0..60),
            asked in prop::collection::vec((0..110_usize, 1..20_usize), 20),
        ) {
            let (mut known, mut bytes) = (Known::default(), [false; 130]);
            for (is_there, start, len) in changed {
                let range = start..start + len;
                if is_there { known.add(range.clone()) } else { known.remove(&range) }
                bytes[range].fill(is_there);
                let in_order = known.ranges.windows(2).all(|pair| pair[0].end < pair[1].start);
                prop_assert!(in_order && known.ranges.iter().all(|there| there.start < there.end));
            }
            for (start, len) in asked {
                let all = bytes[start..start + len].iter().all(|there| *there);
                let around = known.around(&(start..start + len)).cloned();
                prop_assert_eq!(around.is_some(), all);
                if let Some(around) = around {
                    prop_assert!(bytes[around.clone()].iter().all(|there| *there));
                    prop_assert!(!bytes[around.end] && (around.start == 0 || !bytes[around.start - 1]));
                }
            }
        }
    }
}
