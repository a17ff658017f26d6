//! Checks a list of pairs, and groups them by path.

use std::{cmp::Ordering, iter, slice};

use smallvec::{SmallVec, smallvec};
use transload_core::{
    BlockList, BufferId, Error, ErrorKind, Operation, RawBuffer, Result, TransferPath, runs_by_allocation,
};

use super::Pair;
use crate::planning::request::{self, PlanInput};

/// The pairs of one path that are not empty.
pub(super) struct Group {
    pub(super) input: PlanInput,
    /// Number of pairs.
    pub(super) count: usize,
    /// `None` if they are the whole list, in which there may be empty ones too.
    part: Option<Vec<Pair>>,
    /// Their indices in the list, ascending; `None` if they are the whole list.
    pub(super) indices: Option<Vec<usize>>,
}

/// An error, with the indices of the pairs that it is about.
pub(super) type BadPairs = (SmallVec<[usize; 2]>, Error);

impl Group {
    pub(super) fn new(path: TransferPath) -> Self {
        Self {
            input: PlanInput { path, bytes: 0, device_visible: true },
            count: 0,
            part: None,
            indices: None,
        }
    }

    /// Returns the group of all blocks, if they have one path and may be written.
    pub(super) fn of_blocks(blocks: &BlockList) -> Option<Self> {
        let mut group = Self::new(path_of(blocks.pools().first()?));
        for pools in blocks.pools() {
            if path_of(pools) != group.input.path || !pools.1.is_writable() {
                return None;
            }
            group.add(slice::from_ref(pools));
        }
        (group.count, group.input.bytes) = (blocks.len(), blocks.bytes());
        Some(group)
    }

    /// Adds pairs of the same two allocations.
    pub(super) fn add(&mut self, run: &[Pair]) {
        let visible =
            |buffer: &RawBuffer| !buffer.place().device.is_cpu() || buffer.device_address().is_some();
        let (mut count, mut bytes) = (0, 0_u64);
        for (src, _) in run {
            count += usize::from(!src.is_empty());
            bytes = bytes.saturating_add(src.len() as u64);
        }
        if let Some((src, dst)) = run.first().filter(|_| count > 0) {
            self.count += count;
            self.input.bytes = self.input.bytes.saturating_add(bytes);
            self.input.device_visible &= visible(src) && visible(dst);
        }
    }

    /// Returns its pairs, of the list that it was made of.
    pub(super) fn pairs<'a>(&'a self, list: &'a [Pair]) -> &'a [Pair] {
        self.part.as_deref().unwrap_or(list)
    }

    /// Returns the indices of the list's pairs that are empty, ascending; of a group of the whole list.
    pub(super) fn empty_of(&self, list: &[Pair]) -> Vec<usize> {
        if self.count == list.len() {
            return Vec::new();
        }
        let empty = list.iter().enumerate().filter(|(_, (src, _))| src.is_empty());
        empty.map(|(index, _)| index).collect()
    }

    /// Returns whether its pairs are the whole list.
    pub(super) fn is_whole(&self) -> bool {
        self.part.is_none()
    }
}

fn path_of((src, dst): &Pair) -> TransferPath {
    request::path_of(src, dst)
}

/// Checks each pair, and groups those that are not empty. Pairs of several groups are also checked to be
/// [apart](check_apart): the rest do that when they are submitted.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for unequal lengths or a read-only destination; [`ErrorKind::Overlap`].
pub(super) fn grouped(list: &[Pair]) -> Result<Vec<Group>, BadPairs> {
    let Some(first) = list.first() else { return Ok(Vec::new()) };
    let mut whole = Group::new(path_of(first));
    let mut is_one = true;
    for run in runs_by_allocation(list) {
        let Some(first) = run.first() else { continue };
        if !first.1.is_writable() || run.iter().any(|(src, dst)| src.len() != dst.len()) {
            return Err(bad_pairs(list));
        }
        whole.add(run);
        is_one &= path_of(first) == whole.input.path;
    }
    if whole.count == 0 {
        return Ok(Vec::new());
    }
    if is_one {
        return Ok(vec![whole]);
    }
    check_apart(list)?;
    let mut groups: Vec<Group> = Vec::new();
    let mut latest = 0;
    for (index, pair) in list.iter().enumerate().filter(|(_, (src, _))| !src.is_empty()) {
        let path = path_of(pair);
        if groups.get(latest).is_none_or(|group| group.input.path != path) {
            latest = groups.iter().position(|group| group.input.path == path).unwrap_or_else(|| {
                groups.push(Group::new(path));
                groups.len() - 1
            });
        }
        let Some(group) = groups.get_mut(latest) else { continue };
        group.add(slice::from_ref(pair));
        group.indices.get_or_insert_default().push(index);
        group.part.get_or_insert_default().push(pair.clone());
    }
    Ok(groups)
}

#[cold]
fn bad_pairs(list: &[Pair]) -> BadPairs {
    let is_bad = |(_, (src, dst)): &(usize, &Pair)| src.len() != dst.len() || !dst.is_writable();
    let bad: SmallVec<[usize; 2]> = list.iter().enumerate().filter(is_bad).map(|(index, _)| index).collect();
    let (index, count) = (bad.first().copied().unwrap_or_default(), list.len());
    let checked = list.get(index).map_or(Ok(()), |(src, dst)| Operation::Copy { src, dst }.validate());
    let cause = checked.err().unwrap_or_else(|| Error::new(ErrorKind::InvalidArgument, "not a valid copy"));
    let text = match bad.len() {
        0 | 1 => format!("pair {index} of {count} is invalid, nothing was copied"),
        all => format!("{all} of {count} pairs are invalid, nothing was copied; the first is pair {index}"),
    };
    (bad, Error::caused_by(cause.kind(), text, cause))
}

/// A range of the list that is not empty.
struct Range {
    buffer: BufferId,
    start: usize,
    end: usize,
    /// Index of its pair, and whether it is the destination.
    pair: usize,
    is_written: bool,
}

/// Checks that no destination overlaps another range of the list, since the pairs are copied in no defined order.
///
/// # Errors
/// [`ErrorKind::Overlap`].
#[cold]
pub(super) fn check_apart(list: &[Pair]) -> Result<(), BadPairs> {
    let range = |buffer: &RawBuffer, pair, is_written| Range {
        buffer: buffer.id(),
        start: buffer.offset(),
        end: buffer.offset() + buffer.len(),
        pair,
        is_written,
    };
    let pairs = list.iter().enumerate().filter(|(_, (src, _))| !src.is_empty());
    let mut ranges: Vec<Range> = pairs
        .flat_map(|(pair, (src, dst))| iter::once(range(src, pair, false)).chain([range(dst, pair, true)]))
        .collect();
    ranges.sort_unstable_by(|a, b| match a.buffer.cmp(&b.buffer) {
        Ordering::Equal => a.start.cmp(&b.start),
        unequal => unequal,
    });
    // Of one allocation, the largest end so far, and that of the destinations, each with its pair.
    let (mut allocation, mut any, mut written) = (None, (0, 0), (0, 0));
    for Range { buffer, start, end, pair, is_written } in ranges {
        if allocation.replace(buffer) != Some(buffer) {
            (any, written) = ((0, 0), (0, 0));
        }
        let other = if is_written { any } else { written };
        if start < other.0 && !transload_core::mutant!("transfer/many-apart") {
            return Err(overlapping(list.len(), other.1.min(pair), other.1.max(pair), start));
        }
        any = any.max((end, pair));
        if is_written {
            written = written.max((end, pair));
        }
    }
    Ok(())
}

fn overlapping(count: usize, first: usize, second: usize, byte: usize) -> BadPairs {
    let which = if first == second {
        format!("source and destination of pair {first} of {count}")
    } else {
        format!("pairs {first} and {second} of {count}")
    };
    let text = format!(
        "{which} touch byte {byte} of one allocation; a destination may overlap no other range, nothing was copied"
    );
    let mut pairs: SmallVec<[usize; 2]> = smallvec![first, second];
    pairs.dedup();
    (pairs, Error::new(ErrorKind::Overlap, text))
}
