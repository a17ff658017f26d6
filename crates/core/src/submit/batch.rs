//! Batches: many pairs, checked to be independent, and joined to few ranges for the claims.
//!
//! Most batches use parts of a few allocations, which are marked in bitmaps. Ranges at odd offsets are ordered by where they begin, and
//! others are sorted.

use std::{fmt::Display, iter, ops::Range, ptr};

use smallvec::SmallVec;

use super::{
    cells::{Bounds, Cells},
    starts::Starts,
};
use crate::{Access, Error, ErrorKind, RawBuffer, Result, hazard::Claimed, submit::operation::check_pair};

/// Most allocations with bitmaps: they are searched one by one.
const FEW: usize = 16;

/// Something about each of a few allocations.
type ByAllocation<'a, T> = SmallVec<[(&'a RawBuffer, T); 2]>;

/// Checks the pairs of a batch, and returns their ranges sorted, those merged that touch.
///
/// # Errors
/// `InvalidArgument` for unequal lengths or memory that is not writable; `Overlap` if a destination overlaps any other range of
/// the batch, since the order of the pairs is not defined.
pub(crate) fn ranges_of(pairs: &[(RawBuffer, RawBuffer)]) -> Result<Vec<Claimed<'_>>> {
    let mut bounds = ByAllocation::new();
    for run in runs_by_allocation(pairs) {
        let [(src, dst), ..] = run else { continue };
        if !dst.is_writable() || run.iter().any(|(src, dst)| src.len() != dst.len()) {
            return Err(invalid(pairs));
        }
        add(&mut bounds, src, &Bounds::of(run.iter().map(|(src, _)| src.range())));
        add(&mut bounds, dst, &Bounds::of(run.iter().map(|(_, dst)| dst.range())));
    }
    if bounds.len() <= FEW {
        bounds.sort_by_key(|(buffer, _)| buffer.id());
        if let Some(cells) = of_each(&bounds, Bounds::cells) {
            return marked(pairs, cells);
        }
        if let Some(parts) = of_each(&bounds, Bounds::starts).and_then(|starts| ordered(pairs, starts)) {
            return merged(parts);
        }
    }
    merged(sorted(pairs))
}

/// Returns the pairs in runs of the same two allocations, none empty.
pub fn runs_by_allocation(
    mut pairs: &[(RawBuffer, RawBuffer)],
) -> impl Iterator<Item = &[(RawBuffer, RawBuffer)]> {
    iter::from_fn(move || {
        let (src, dst) = pairs.first()?;
        let is_other =
            |pair: &(RawBuffer, RawBuffer)| !(pair.0.shares_allocation(src) && pair.1.shares_allocation(dst));
        let end = pairs.iter().position(is_other).unwrap_or(pairs.len());
        let (run, rest) = pairs.split_at(end);
        pairs = rest;
        Some(run)
    })
}

/// Returns the error of the first pair that is not valid by itself.
#[cold]
fn invalid(pairs: &[(RawBuffer, RawBuffer)]) -> Error {
    let errors = pairs.iter().enumerate().filter_map(|(index, (src, dst))| {
        let is_valid = src.len() == dst.len() && dst.is_writable();
        let error = check_pair(src, dst).err().filter(|_| !is_valid)?;
        Some(refused(error.kind(), index, error))
    });
    errors.into_iter().next().unwrap_or_else(|| Error::new(ErrorKind::InvalidArgument, "not a valid batch"))
}

/// Adds bounds to those of an allocation. Those of one more than [`FEW`] stand for all others.
fn add<'a>(known: &mut ByAllocation<'a, Bounds>, buffer: &'a RawBuffer, bounds: &Bounds) {
    if let Some((_, known)) = known.iter_mut().find(|(known, _)| known.id() == buffer.id()) {
        known.merge(bounds);
    } else if known.len() <= FEW {
        known.push((buffer, bounds.clone()));
    }
}

/// Returns a table for each allocation, unless one would be long.
fn of_each<'a, T>(
    bounds: &ByAllocation<'a, Bounds>,
    table: impl Fn(&Bounds) -> Option<T>,
) -> Option<ByAllocation<'a, T>> {
    bounds.iter().map(|(buffer, bounds)| Some((*buffer, table(bounds)?))).collect()
}

fn find<'t, T>(tables: &'t mut ByAllocation<'_, T>, buffer: &RawBuffer) -> Option<&'t mut T> {
    tables.iter_mut().find(|(known, _)| ptr::eq(known.hazards(), buffer.hazards())).map(|(_, table)| table)
}

/// Marks the pairs in the bitmaps, and returns the ranges of these.
fn marked<'a>(
    pairs: &[(RawBuffer, RawBuffer)],
    mut cells: ByAllocation<'a, Cells>,
) -> Result<Vec<Claimed<'a>>> {
    let mut first = 0;
    for run in runs_by_allocation(pairs) {
        let [(src, dst), ..] = run else { continue };
        let sources = || run.iter().map(|(src, _)| src.range());
        let destinations = || run.iter().map(|(_, dst)| dst.range());
        let read = find(&mut cells, src).and_then(|cells| cells.mark(Access::Read, sources));
        let conflict =
            read.or_else(|| find(&mut cells, dst).and_then(|cells| cells.mark(Access::Write, destinations)));
        if let Some((index, byte)) = conflict.filter(|_| !crate::mutant!("core/batch-apart")) {
            return Err(touches(first + index, byte));
        }
        first += run.len();
    }
    let mut ranges = Vec::with_capacity(cells.iter().map(|(_, cells)| cells.count()).sum());
    for (buffer, cells) in &cells {
        let first = ranges.len();
        for access in [Access::Read, Access::Write] {
            cells.each(access, |range| ranges.push(Claimed { buffer, range, access, ticket: None }));
        }
        if let Some(of_both) = ranges.get_mut(first..) {
            of_both.sort_by_key(|one| one.range.start);
        }
    }
    Ok(ranges)
}

/// A range of a batch that is not empty.
struct Part<'a> {
    /// Allocation and first byte, as one number, which compares fast.
    begin: u128,
    end: usize,
    buffer: &'a RawBuffer,
    access: Access,
    /// The pair.
    index: usize,
}

impl<'a> Part<'a> {
    fn of(index: usize, buffer: &'a RawBuffer, access: Access) -> Option<Self> {
        let Range { start, end } = buffer.range();
        let begin = u128::from(buffer.id().0) << 64 | start as u128;
        (start < end).then_some(Self { begin, end, buffer, access, index })
    }

    fn start(&self) -> usize {
        self.begin as u64 as usize
    }
}

/// Returns the ranges of the pairs in order, by tables of where they begin, unless two begin in the same slot.
fn ordered<'a>(
    pairs: &'a [(RawBuffer, RawBuffer)],
    mut starts: ByAllocation<'a, Starts>,
) -> Option<Vec<Part<'a>>> {
    // Even for the source of a pair, and odd for its destination.
    let numbered = |index: usize, is_write: bool| u32::try_from(2 * index + usize::from(is_write)).ok();
    let mut first = 0;
    for run in runs_by_allocation(pairs) {
        let [(src, dst), ..] = run else { continue };
        for (is_write, of) in [(false, src), (true, dst)] {
            let starts = find(&mut starts, of)?;
            for (index, (src, dst)) in run.iter().enumerate() {
                let buffer = if is_write { dst } else { src };
                if !(buffer.is_empty() || starts.add(buffer.offset(), numbered(first + index, is_write)?)) {
                    return None;
                }
            }
        }
        first += run.len();
    }
    let mut parts = Vec::with_capacity(2 * pairs.len());
    for (_, starts) in &starts {
        parts.extend(starts.in_order().filter_map(|number| {
            let index = number as usize / 2;
            let (src, dst) = pairs.get(index)?;
            if number % 2 == 0 {
                Part::of(index, src, Access::Read)
            } else {
                Part::of(index, dst, Access::Write)
            }
        }));
    }
    Some(parts)
}

/// Sorts the ranges of the pairs.
fn sorted(pairs: &[(RawBuffer, RawBuffer)]) -> Vec<Part<'_>> {
    let mut parts: Vec<Part<'_>> = Vec::with_capacity(2 * pairs.len());
    // One side is often in order, which the sort uses.
    let in_order = || pairs.iter().enumerate();
    parts.extend(in_order().filter_map(|(index, (src, _))| Part::of(index, src, Access::Read)));
    parts.extend(in_order().filter_map(|(index, (_, dst))| Part::of(index, dst, Access::Write)));
    parts.sort_by_key(|part| part.begin);
    parts
}

/// Merges ranges that touch. They are in order.
fn merged(parts: Vec<Part<'_>>) -> Result<Vec<Claimed<'_>>> {
    let mut ranges: Vec<Claimed<'_>> = Vec::with_capacity(parts.len());
    // The last allocation, the largest end of all its ranges so far, and of the written ones among them.
    let (mut allocation, mut any, mut by_write) = (u64::MAX, 0, 0);
    for part in parts {
        let (id, start, is_write) = ((part.begin >> 64) as u64, part.start(), part.access == Access::Write);
        if id != allocation {
            (allocation, any, by_write) = (id, 0, 0);
        }
        if (start < by_write || (is_write && start < any)) && !crate::mutant!("core/sorted-batch-apart") {
            return Err(touches(part.index, start));
        }
        any = any.max(part.end);
        by_write = if is_write { any } else { by_write };
        match ranges.last_mut() {
            Some(last)
                if last.buffer.id().0 == id && start <= last.range.end && last.access == part.access =>
            {
                last.range.end = last.range.end.max(part.end);
            }
            _ => ranges.push(Claimed {
                buffer: part.buffer,
                range: start..part.end,
                access: part.access,
                ticket: None,
            }),
        }
    }
    Ok(ranges)
}

#[cold]
fn touches(index: usize, byte: usize) -> Error {
    let text = format!("another pair touches byte {byte} of the same allocation; choose disjoint ranges");
    refused(ErrorKind::Overlap, index, text)
}

#[cold]
fn refused(kind: ErrorKind, index: usize, why: impl Display) -> Error {
    Error::new(kind, format!("pair {index} of the batch: {why}"))
}
