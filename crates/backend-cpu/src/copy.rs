//! Runs operations on host memory, as a whole or by ranges of units.

use std::{ops::Range, ptr};

use transload_core::{
    Error, ErrorKind, FloatType, Operation, Pattern, Pitched, RawBuffer, Result,
    host_access::{self, HostAccess},
};
use transload_executor::stream_copy;

use crate::costs;

/// An operation split into pieces that may run concurrently. Units are the bytes of a copy or a fill, rows,
/// the pairs of a batch, or the elements of a cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Number of units.
    pub(crate) units: usize,
    /// Units per piece.
    pub(crate) step: usize,
}

impl Partition {
    /// Splits into pieces of about a quarter of a worker's share, within bounds that keep both task switches and the
    /// last piece cheap. Pieces are whole huge pages where each worker has at least one: two workers that fault the same
    /// one in would both allocate it.
    pub(crate) fn new(operation: &Operation<'_>, workers: usize) -> Self {
        const HUGE: usize = 2 << 20;
        let total = bytes(operation);
        let share = total / workers.saturating_mul(4).max(1);
        let grain = if total / workers.max(1) >= HUGE { HUGE } else { 64 << 10 };
        let piece = share.clamp(512 << 10, 4 << 20).next_multiple_of(grain);
        let units = units(operation);
        let step = match operation {
            Operation::Copy { .. } | Operation::Fill { .. } => piece,
            _ => units.div_ceil(total.div_ceil(piece).max(1)).max(1),
        };
        Self { units, step }
    }

    pub(crate) fn pieces(self) -> usize {
        self.units.div_ceil(self.step)
    }

    /// Returns the units of the `index`-th piece; `None` after the last.
    pub(crate) fn piece(self, index: usize) -> Option<Range<usize>> {
        let start = index.checked_mul(self.step).filter(|start| *start < self.units)?;
        Some(start..self.units.min(start.saturating_add(self.step)))
    }
}

/// How copies store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    Cached,
    /// Past the caches: else each cache line of a large destination would be read first.
    Streaming,
}

impl Stores {
    /// `stream_from` is the size in bytes, of the whole operation, from which it streams.
    pub(crate) fn of(operation: &Operation<'_>, stream_from: usize) -> Self {
        if bytes(operation) >= stream_from { Self::Streaming } else { Self::Cached }
    }
}

/// Returns the bytes that the operation writes.
pub(crate) fn bytes(operation: &Operation<'_>) -> usize {
    match operation {
        Operation::Copy { dst, .. } | Operation::Fill { dst, .. } | Operation::Cast { dst, .. } => dst.len(),
        Operation::CopyPitched { rows, .. } => rows.width.saturating_mul(units(operation)),
        Operation::CopyBatch { pairs } => {
            pairs.iter().fold(0, |sum: usize, (_, dst)| sum.saturating_add(dst.len()))
        }
        _ => 0,
    }
}

fn units(operation: &Operation<'_>) -> usize {
    match operation {
        Operation::Copy { dst, .. } | Operation::Fill { dst, .. } => dst.len(),
        Operation::CopyPitched { rows, .. } => rows.height.saturating_mul(rows.planes),
        Operation::CopyBatch { pairs } => pairs.len(),
        Operation::Cast { dst, to, .. } => dst.len() / to.size(),
        _ => 0,
    }
}

/// Checks that the workers can run the operation.
pub(crate) fn check(operation: &Operation<'_>) -> Result<()> {
    match operation {
        Operation::Copy { src, dst }
        | Operation::CopyPitched { src, dst, .. }
        | Operation::Cast { src, dst, .. } => both(src, dst),
        Operation::CopyBatch { pairs } => pairs.iter().try_for_each(|(src, dst)| both(src, dst)),
        Operation::CopyInPlace { src, dst } => mapped(src).and_then(|()| mapped(dst)),
        Operation::CopyBatchInPlace { pairs } => {
            pairs.iter().try_for_each(|(src, dst)| mapped(src).and_then(|()| mapped(dst)))
        }
        Operation::Fill { dst, .. } => reachable(dst),
        Operation::Prefetch { buffer, .. } | Operation::PrefetchToNode { buffer, .. } => {
            Err(unsupported(format!(
                "a cpu queue cannot prefetch {} memory; ask a queue of the memory's own backend",
                buffer.place()
            )))
        }
        _ => Err(unsupported("a cpu queue can only copy, cast and fill".to_owned())),
    }
}

fn both(src: &RawBuffer, dst: &RawBuffer) -> Result<()> {
    reachable(src)?;
    reachable(dst)
}

fn reachable(buffer: &RawBuffer) -> Result<()> {
    if costs::is_reachable(buffer.place()) && buffer.host_address().is_some() {
        return Ok(());
    }
    Err(unsupported(format!(
        "a cpu queue does not reach {} memory; it reaches pageable, pinned and mapped memory of cpu",
        buffer.place()
    )))
}

/// Checks memory that is copied in place.
fn mapped(buffer: &RawBuffer) -> Result<()> {
    address(buffer).map(drop)
}

/// Returns a checked operation as the workers run it: they copy all memory in place.
pub(crate) fn plain<'a>(operation: &Operation<'a>) -> Operation<'a> {
    match *operation {
        Operation::CopyInPlace { src, dst } => Operation::Copy { src, dst },
        Operation::CopyBatchInPlace { pairs } => Operation::CopyBatch { pairs },
        operation => operation,
    }
}

fn unsupported(text: String) -> Error {
    Error::new(ErrorKind::Unsupported, text)
}

/// Reports the operation's accesses to the host access hook, on the thread that begins them.
pub(crate) fn note_accesses(operation: &Operation<'_>) {
    let note = |buffer: &RawBuffer, access| {
        if let Some(address) = buffer.mapped_address() {
            host_access::note(address.as_ptr().addr(), buffer.len(), access);
        }
    };
    match operation {
        Operation::Copy { src, dst }
        | Operation::CopyPitched { src, dst, .. }
        | Operation::Cast { src, dst, .. } => {
            note(src, HostAccess::Read);
            note(dst, HostAccess::Write);
        }
        Operation::CopyBatch { pairs } => {
            for (src, dst) in *pairs {
                note(src, HostAccess::Read);
                note(dst, HostAccess::Write);
            }
        }
        Operation::Fill { dst, .. } => note(dst, HostAccess::Write),
        _ => {}
    }
}

/// Runs the whole operation, and reports its accesses.
///
/// # Safety
/// Those of [`perform_units`].
pub(crate) unsafe fn perform(operation: &Operation<'_>, stores: Stores) -> Result<()> {
    note_accesses(operation);
    // SAFETY: the caller's promise.
    unsafe { perform_units(operation, 0..units(operation), stores) }
}

/// Runs a range of the operation's units.
///
/// # Safety
/// * The operation must be valid and within its buffers, without conflicting uses of these units.
/// * `range` must lie within the operation's units.
pub(crate) unsafe fn perform_units(
    operation: &Operation<'_>,
    range: Range<usize>,
    stores: Stores,
) -> Result<()> {
    match *operation {
        Operation::Copy { src, dst } => {
            // SAFETY: both have all of the operation's bytes, and the range lies within them.
            unsafe { move_bytes((src, range.start), (dst, range.start), range.len(), stores) }
        }
        Operation::CopyPitched { src, dst, rows } => {
            // SAFETY: a valid operation's rows lie within both buffers.
            range.into_iter().try_for_each(|row| unsafe { move_row(src, dst, rows, row, stores) })
        }
        Operation::CopyBatch { pairs } => {
            let pair = |(src, dst): &(RawBuffer, RawBuffer)| {
                // SAFETY: the two of a pair have one length.
                unsafe { move_bytes((src, 0), (dst, 0), dst.len(), stores) }
            };
            pairs.get(range).unwrap_or_default().iter().try_for_each(pair)
        }
        Operation::Cast { src, from, dst, to } => {
            // SAFETY: both have all of the operation's elements, and the range lies within them.
            unsafe { cast((address(src)?, from), (address(dst)?, to), range) };
            Ok(())
        }
        Operation::Fill { dst, pattern } => {
            // SAFETY: the range lies within the buffer, and a piece begins at a multiple of 64 KiB, so of every pattern.
            unsafe { fill(address(dst)?.add(range.start), range.len(), pattern) };
            Ok(())
        }
        _ => Err(unsupported("a cpu queue can only copy, cast and fill".to_owned())),
    }
}

fn address(buffer: &RawBuffer) -> Result<*mut u8> {
    match buffer.mapped_address() {
        Some(address) => Ok(address.as_ptr()),
        None => Err(unsupported(format!("the host cannot address {} memory", buffer.place()))),
    }
}

/// # Safety
/// The rows must lie within both buffers, and `row` must be one of them.
unsafe fn move_row(
    src: &RawBuffer,
    dst: &RawBuffer,
    rows: Pitched,
    row: usize,
    stores: Stores,
) -> Result<()> {
    let (plane, row) = (row / rows.height, row % rows.height);
    let (from, to) =
        (plane * rows.src_plane + row * rows.src_pitch, plane * rows.dst_plane + row * rows.dst_pitch);
    // SAFETY: by the caller's promise the rows are within the buffers' lengths, so the offsets do not overflow either.
    unsafe { move_bytes((src, from), (dst, to), rows.width, stores) }
}

/// # Safety
/// `len` bytes from each offset must lie within its buffer, without conflicting uses.
unsafe fn move_bytes(
    (src, from): (&RawBuffer, usize),
    (dst, to): (&RawBuffer, usize),
    len: usize,
    stores: Stores,
) -> Result<()> {
    // SAFETY: as promised.
    let (src, dst) = unsafe { (address(src)?.add(from), address(dst)?.add(to)) };
    match stores {
        // SAFETY: as promised, and they do not overlap.
        Stores::Streaming if src.addr().abs_diff(dst.addr()) >= len => unsafe { stream_copy(src, dst, len) },
        // SAFETY: as promised. `copy` and not `copy_nonoverlapping`: two buffers may wrap the same foreign bytes.
        _ => unsafe { ptr::copy(src, dst, len) },
    }
    Ok(())
}

/// By way of blocks of its own: two buffers may wrap the same foreign bytes, of any alignment.
///
/// # Safety
/// Both must have the elements of this range, without conflicting uses.
unsafe fn cast(
    (src, from): (*const u8, FloatType),
    (dst, to): (*mut u8, FloatType),
    mut range: Range<usize>,
) {
    const ELEMENTS: usize = 1024;
    let (mut there, mut here) = ([0_u8; 4 * ELEMENTS], [0_u8; 4 * ELEMENTS]);
    while !range.is_empty() {
        let count = range.len().min(ELEMENTS);
        // SAFETY: the caller's promise; a block has room for as many elements of any type.
        unsafe {
            ptr::copy(src.add(range.start * from.size()), there.as_mut_ptr(), count * from.size());
            from.cast(&there, to, &mut here);
            ptr::copy(here.as_ptr(), dst.add(range.start * to.size()), count * to.size());
        }
        range.start += count;
    }
}

/// # Safety
/// `len` bytes at `dst` must be writable by this thread alone.
unsafe fn fill(dst: *mut u8, len: usize, pattern: Pattern) {
    /// Several cache lines, so that the host's copy uses its widest stores.
    const BLOCK: usize = 1024;
    if let Pattern::U8(byte) = pattern.shortest() {
        // SAFETY: the caller's promise.
        unsafe { ptr::write_bytes(dst, byte, len) };
        return;
    }
    let mut block = [0_u8; BLOCK];
    let repeated = pattern.repeated();
    let (words, _) = block.as_chunks_mut::<16>();
    words.iter_mut().take(len.div_ceil(16)).for_each(|word| *word = repeated);
    let mut done = 0;
    while done < len {
        let step = BLOCK.min(len - done);
        // SAFETY: the block has `step` bytes, and `done + step` is at most `len`.
        unsafe { ptr::copy_nonoverlapping(block.as_ptr(), dst.add(done), step) };
        done += step;
    }
}

#[cfg(test)]
#[path = "../tests/unit/copy.rs"]
mod tests;
