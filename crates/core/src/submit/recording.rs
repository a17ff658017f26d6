//! Recordings: operations that are prepared once and enqueued as a whole, any number of times.

use std::{any::Any, collections::BTreeMap, fmt};

use crate::{Access, BufferId, DeviceId, Operation, RawBuffer};

/// A set of operations prepared by a backend. It keeps its buffers alive. Recording enqueues nothing and
/// touches no data; [`Operation::Replay`] enqueues all of it, ordered by its buffers like any other
/// operation.
///
/// Each replay uses the buffers' contents at the time it runs. Can be used from any thread; replays of one
/// recording run one after another.
///
/// # Safety
/// * [`uses`](Self::uses) lists every range that the recorded work touches, disjoint for each allocation,
///   with [`Access::Write`] for every range that it writes. It returns the same list while the recording is
///   borrowed.
/// * [`as_any`](Self::as_any) returns `self`, not some other recording.
pub unsafe trait Recording: fmt::Debug + Send + Sync + 'static {
    /// Returns the device whose queues replay it.
    fn device(&self) -> DeviceId;

    /// Returns the ranges that a replay uses.
    fn uses(&self) -> &[(RawBuffer, Access)];

    /// Returns whether only the device itself touches the memory: no host function, no other device.
    /// Otherwise each replay counts as a use of unified memory by unknown devices.
    fn stays_on_device(&self) -> bool {
        false
    }

    /// Returns whether a replay may leave some of the bytes that [`uses`](Self::uses) lists as written unchanged, as a copy of rows leaves
    /// those between its rows. Such a replay does not make good what earlier work that failed has left there.
    fn keeps_bytes(&self) -> bool {
        false
    }

    /// Returns `self`, for the backend's own queues.
    fn as_any(&self) -> &dyn Any;
}

/// Returns the ranges that a set of operations uses, disjoint within each allocation, so that they can be
/// claimed together. A range that one operation reads and another one writes is listed as written.
///
/// For implementations of [`Recording`]. The order among the operations themselves is theirs to keep.
#[must_use]
pub fn merged_uses(operations: &[Operation<'_>]) -> Vec<(RawBuffer, Access)> {
    merge(operations.iter().flat_map(|operation| operation.uses()))
}

/// Like [`merged_uses`], but of a list of uses.
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

/// Returns the disjoint ranges of one allocation's uses; adjacent ranges of the same access are merged.
fn disjoint_ranges(uses: &[(&RawBuffer, Access)]) -> Vec<(RawBuffer, Access)> {
    // Changes by address: in the number of uses, and of uses that write.
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
