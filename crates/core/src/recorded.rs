//! Work that was prepared once and is enqueued as a whole, as often as wanted: a recording.

use std::{any::Any, collections::BTreeMap, fmt};

use crate::{Access, BufferId, DeviceId, Operation, RawBuffer};

/// A set of operations that a backend has prepared. It keeps its buffers alive. Recording enqueues nothing and touches no
/// data; [`Operation::Replay`] enqueues all of it, in the order that the buffers ask for like any other operation.
///
/// Each replay works on what the buffers hold when its turn comes. May be used from any thread; replays of one recording
/// run one after the other.
///
/// # Safety
/// * [`uses`](Self::uses) lists every range that the recorded work touches, disjoint for each allocation, with
///   [`Access::Write`] for every range that it writes. The answer does not change while the recording is borrowed.
/// * [`as_any`](Self::as_any) answers `self`, not some other recording.
pub unsafe trait Recorded: fmt::Debug + Send + Sync + 'static {
    /// The device whose queues replay it.
    fn device(&self) -> DeviceId;

    /// What a replay reads and writes.
    fn uses(&self) -> &[(RawBuffer, Access)];

    /// Whether nothing but the device itself touches the memory: no function of the host's, no other device. Otherwise unified
    /// memory counts as used elsewhere at each replay.
    fn stays_on_device(&self) -> bool {
        false
    }

    /// For the backend's own queues.
    fn as_any(&self) -> &dyn Any;
}

/// What a set of operations uses, with no two ranges of one allocation overlapping: where one operation reads what another
/// one writes, the range is written. So the whole can be claimed at once.
///
/// For who implements [`Recorded`]; the order among the operations themselves is the implementation's to keep.
#[must_use]
pub fn merged_uses(operations: &[Operation<'_>]) -> Vec<(RawBuffer, Access)> {
    merge(operations.iter().flat_map(|operation| operation.uses()))
}

/// As [`merged_uses`], of uses that are known otherwise.
#[must_use]
pub fn merge_uses(uses: &[(&RawBuffer, Access)]) -> Vec<(RawBuffer, Access)> {
    merge(uses.iter().copied())
}

fn merge<'a>(uses: impl Iterator<Item = (&'a RawBuffer, Access)>) -> Vec<(RawBuffer, Access)> {
    let mut of_allocation: BTreeMap<BufferId, Vec<(&RawBuffer, Access)>> = BTreeMap::new();
    for (buffer, access) in uses.filter(|(buffer, _)| !buffer.is_empty()) {
        of_allocation.entry(buffer.id()).or_default().push((buffer, access));
    }
    of_allocation.values().flat_map(|uses| pieces(uses)).collect()
}

/// The ranges of one allocation, cut where a use begins or ends, neighbours of the same access put together again.
fn pieces(uses: &[(&RawBuffer, Access)]) -> Vec<(RawBuffer, Access)> {
    // Where coverage changes: by how many uses, and by how many of those that write.
    let mut changes: BTreeMap<usize, (isize, isize)> = BTreeMap::new();
    for (buffer, access) in uses {
        let writes = isize::from(*access == Access::Write);
        let range = buffer.range();
        let begin = changes.entry(range.start).or_default();
        *begin = (begin.0 + 1, begin.1 + writes);
        let end = changes.entry(range.end).or_default();
        *end = (end.0 - 1, end.1 - writes);
    }
    let mut ranges: Vec<(usize, usize, Access)> = Vec::new();
    let (mut open, mut writing, mut from) = (0, 0, 0);
    for (at, (uses, writes)) in changes {
        if open > 0 && at > from {
            let access = if writing > 0 { Access::Write } else { Access::Read };
            match ranges.last_mut() {
                Some((_, end, last)) if *end == from && *last == access => *end = at,
                _ => ranges.push((from, at, access)),
            }
        }
        (open, writing, from) = (open + uses, writing + writes, at);
    }
    let Some((whole, _)) = uses.first() else { return Vec::new() };
    ranges.into_iter().map(|(from, to, access)| (whole.of_allocation(from, to), access)).collect()
}

#[cfg(test)]
mod tests {
    use std::{ptr::NonNull, sync::Arc};

    use super::*;
    use crate::{MemoryKind, Pattern, Place, Reclaimer, Storage};

    struct Bytes(usize);

    // SAFETY: it has no address at all.
    unsafe impl Storage for Bytes {
        fn place(&self) -> Place {
            Place::new(DeviceId::Cpu, MemoryKind::Pageable)
        }

        fn len(&self) -> usize {
            self.0
        }

        fn host_address(&self) -> Option<NonNull<u8>> {
            None
        }

        fn device_address(&self) -> Option<u64> {
            None
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    fn buffer(bytes: usize) -> RawBuffer {
        RawBuffer::new(Box::new(Bytes(bytes)), &Arc::new(Reclaimer::new()))
    }

    fn shown(uses: &[(RawBuffer, Access)], of: &RawBuffer) -> Vec<(usize, usize, Access)> {
        let mine = uses.iter().filter(|(buffer, _)| buffer.id() == of.id());
        mine.map(|(buffer, access)| (buffer.offset(), buffer.len(), *access)).collect()
    }

    #[test]
    fn a_range_that_is_read_and_written_is_written_and_the_rest_keeps_its_access() {
        let (a, b) = (buffer(100), buffer(100));
        let (low, high) = (a.slice(..60).unwrap(), a.slice(40..).unwrap());
        let uses = merged_uses(&[
            Operation::Copy { src: &low, dst: &b.slice(..60).unwrap() },
            Operation::Fill { dst: &high, pattern: Pattern::U8(1) },
        ]);
        assert_eq!(shown(&uses, &a), [(0, 40, Access::Read), (40, 60, Access::Write)]);
        assert_eq!(shown(&uses, &b), [(0, 60, Access::Write)]);
    }

    #[test]
    fn neighbours_and_repeats_become_one_range_and_gaps_stay_free() {
        let a = buffer(100);
        let part = |range: std::ops::Range<usize>| a.slice(range).unwrap();
        let (one, two, three, none) = (part(0..10), part(10..20), part(30..40), part(50..50));
        let uses = merge_uses(&[
            (&two, Access::Read),
            (&one, Access::Read),
            (&one, Access::Read),
            (&three, Access::Write),
            (&none, Access::Write),
        ]);
        assert_eq!(shown(&uses, &a), [(0, 20, Access::Read), (30, 10, Access::Write)]);
    }

    #[test]
    fn no_two_ranges_of_the_answer_overlap_whatever_was_asked() {
        let a = buffer(64);
        let mut state = 7_u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..200 {
            let asked: Vec<_> = (0..draw(9))
                .map(|_| {
                    let from = draw(64);
                    let to = from + draw(65 - from);
                    (a.slice(from..to).unwrap(), if draw(2) == 0 { Access::Read } else { Access::Write })
                })
                .collect();
            let borrowed: Vec<_> = asked.iter().map(|(buffer, access)| (buffer, *access)).collect();
            let merged = merge_uses(&borrowed);
            for byte in 0..64 {
                let at = |uses: &[(RawBuffer, Access)]| -> Vec<Access> {
                    let covering = uses.iter().filter(|(buffer, _)| buffer.range().contains(&byte));
                    covering.map(|(_, access)| *access).collect()
                };
                let (wanted, told) = (at(&asked), at(&merged));
                assert!(told.len() <= 1 && told.is_empty() == wanted.is_empty());
                assert_eq!(told.contains(&Access::Write), wanted.contains(&Access::Write), "byte {byte}");
            }
        }
    }
}
