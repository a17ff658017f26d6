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
pub unsafe trait Recording: fmt::Debug + Send + Sync + 'static {
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
/// For who implements [`Recording`]; the order among the operations themselves is the implementation's to keep.
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
    of_allocation.values().flat_map(|uses| disjoint_ranges(uses)).collect()
}

/// The ranges of one allocation, cut where a use begins or ends, neighbours of the same access put together again.
fn disjoint_ranges(uses: &[(&RawBuffer, Access)]) -> Vec<(RawBuffer, Access)> {
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
