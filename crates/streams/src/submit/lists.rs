//! Batches of copies by one kernel, which reads the list of pieces from mapped memory.

use std::slice;

use transload_core::{BlockList, RawBuffer, Result, events::report};
use transload_cuda_sys::DriverError;
use transload_memory::{FixedList, ListEntry};

use super::{
    addresses::in_place,
    batches::Joined,
    driver_calls::DriverCalls,
    kernels::{Kernels, Overlap},
};
use crate::{
    CudaStream,
    built_in::{
        FIRST_PART, GROWTH, LAUNCHED_WHOLE, LIST_CUTS, LIST_PIECE, LONG_LIST, LONG_PIECE, OVERLAPPING_PARTS,
    },
    completion::timeline::StreamTimeline,
};

/// What is reported if there is no memory for a list.
const NO_LIST: &str = "a batch in place becomes one launch for each copy";

impl StreamTimeline {
    /// Allocates the memory that the list of a batch of so many pairs and bytes lacks, if possible.
    #[cold]
    pub(crate) fn prepare_list(&self, pairs: usize, bytes: u64) {
        let prepared = self.lists.prepare(self.context(), self.id, most(pairs, bytes));
        if let Err(error) = prepared {
            report::call_failed(NO_LIST, self.device, &error);
        }
    }
}

impl StreamTimeline {
    /// Writes the list of a batch for any number of launches.
    ///
    /// # Errors
    /// `OutOfMemory` at the limit of pinned memory; the driver's.
    pub(crate) fn fixed_list(&self, pairs: &[(RawBuffer, RawBuffer)]) -> Result<FixedList> {
        let pieces: Vec<ListEntry> = Pieces::of(pairs).collect();
        self.lists.fixed(self.context(), &pieces)
    }
}

impl<'a> DriverCalls<'a> {
    /// # Errors
    /// `Unsupported` if the device cannot use a pool in place.
    pub(super) fn of_blocks(blocks: &'a BlockList, stream: &'a CudaStream) -> Result<Self> {
        for (src, dst) in blocks.pools() {
            in_place(src, stream)?;
            in_place(dst, stream)?;
        }
        Ok(Self::CopyBlocks(stream.own.kernels()?, blocks, &stream.own))
    }
}

impl Kernels {
    /// Enqueues the copies of a batch by one launch for each page that its list fills; a long one that the device does not come to
    /// much later is launched in parts, so that it copies while the host writes the rest, and each part begins before the one before it ends, where a device can. What finds no room in a page is copied by one launch for each joined copy.
    ///
    /// # Errors
    /// The driver's. Some copies may be in flight then, as `in_flight` says.
    ///
    /// # Safety
    /// * The stream is of the kernels' context, which is current.
    /// * The device addresses of all buffers are valid on its device. No destination overlaps another range. The buffers stay alive and
    ///   have no conflicting use until the copies are complete; also after an error, if `in_flight` is true.
    pub(super) unsafe fn copy_list(
        &self,
        mut pieces: Pieces<impl Iterator<Item = ListEntry> + Clone>,
        stream: &StreamTimeline,
        in_flight: &mut bool,
    ) -> std::result::Result<(), DriverError> {
        if transload_core::mutant!("streams/task-allocates-no-list") {
            stream.prepare_list(pieces.pairs, pieces.total);
        }
        let is_awaited = stream.outstanding() < LAUNCHED_WHOLE
            || transload_core::mutant!("streams/queued-list-is-one-launch");
        let (mut part, mut launched) = (if is_awaited { pieces.first_part() } else { usize::MAX }, 0);
        let may_overlap = part < usize::MAX && self.overlap_on(stream.raw());
        while !pieces.is_end() {
            let Some(mut page) = stream.lists.take(stream.id, 1) else { break };
            let mut is_read = false;
            loop {
                let (list, count);
                (list, count, pieces) = page.write(pieces, part);
                let overlap = Overlap {
                    before: may_overlap
                        && (launched > 0 || transload_core::mutant!("streams/first-part-waits")),
                    after: may_overlap && !pieces.is_end(),
                };
                // SAFETY: the caller's promise; the page has `count` pieces there, which stay until the event is complete. The pieces do not
                // depend on each other, and what follows the last launch comes after it.
                if let Err(error) = unsafe { self.launch_part(list, count, stream.raw(), overlap) } {
                    // A page whose end is unknown is dropped: it is freed when the device no longer uses it.
                    if !is_read {
                        stream.lists.put(page);
                    }
                    return Err(error);
                }
                is_read |= count > 0;
                *in_flight |= count > 0 && !transload_core::mutant!("streams/parts-in-flight");
                launched += count;
                if count < part {
                    break;
                }
                part = if may_overlap {
                    FIRST_PART.max(launched / OVERLAPPING_PARTS)
                } else {
                    part.saturating_mul(GROWTH)
                };
            }
            // Dropped if that fails, as above.
            page.record(stream.stream())?;
            stream.lists.put(page);
        }
        for [dst, src, bytes] in pieces.uncut() {
            // SAFETY: the caller's promise.
            unsafe { self.copy(src, dst, bytes as usize, stream.raw()) }?;
            *in_flight = true;
        }
        Ok(())
    }
}

/// Returns the length in bytes of the longest pieces into which a batch is cut.
fn longest(total: u64) -> u64 {
    total.div_ceil(LIST_CUTS).next_multiple_of(LIST_PIECE).max(LIST_PIECE)
}

/// Returns how many pieces of so many pairs and bytes there are at most.
fn most(pairs: usize, total: u64) -> usize {
    pairs.saturating_add((total / longest(total)) as usize)
}

/// The copies of a batch as `transload_copy_list` reads them: cut into pieces, so that none occupies a part of the device for long
/// while the rest is idle.
pub(super) struct Pieces<I> {
    /// Neighbours are joined.
    copies: I,
    /// What is left of the last copy.
    rest: ListEntry,
    /// Number of pairs, and their bytes.
    pairs: usize,
    total: u64,
    longest: u64,
    /// Whether the copies go over the device's link.
    cross: bool,
}

impl Pieces<()> {
    pub(super) fn of(pairs: &[(RawBuffer, RawBuffer)]) -> Pieces<impl Iterator<Item = ListEntry> + Clone> {
        let total = pairs.iter().map(|(src, _)| src.len() as u64).fold(0, u64::saturating_add);
        // Both have one: it was checked.
        let address = |buffer: &RawBuffer| buffer.device_address().unwrap_or_default();
        let copies = Joined(pairs).map(move |(src, dst, bytes)| [address(dst), address(src), bytes as u64]);
        Pieces::new(copies, pairs.first(), (pairs.len(), total))
    }

    pub(super) fn of_blocks(blocks: &BlockList) -> Pieces<impl Iterator<Item = ListEntry> + Clone> {
        let pools = blocks.pools();
        let (from, to) = blocks.indices();
        let bytes = blocks.block_bytes();
        let copies = JoinedBlocks { from, to, bytes, pools: pools.iter(), addresses: [0; 2], at: from.len() };
        Pieces::new(copies, pools.first(), (blocks.len(), blocks.bytes()))
    }
}

impl<I: Iterator<Item = ListEntry> + Clone> Pieces<I> {
    fn new(copies: I, first: Option<&(RawBuffer, RawBuffer)>, (pairs, total): (usize, u64)) -> Self {
        let cross = first.is_some_and(|(src, dst)| src.place().device != dst.place().device);
        Self { copies, rest: [0; 3], pairs, total, longest: longest(total), cross }
    }

    /// Returns how many of them the first launch has: all, unless the list is long and the device copies over its link.
    fn first_part(&self) -> usize {
        let is_long = most(self.pairs, self.total) >= LONG_LIST;
        let are_long = self.total >= (self.pairs as u64).saturating_mul(LONG_PIECE);
        if is_long && are_long && self.cross { FIRST_PART } else { usize::MAX }
    }

    fn is_end(&self) -> bool {
        let [.., bytes] = self.rest;
        bytes == 0 && self.copies.clone().next().is_none()
    }

    /// Returns what is left, without cuts.
    fn uncut(self) -> Self {
        Self { longest: u64::MAX, ..self }
    }
}

impl<I: Iterator<Item = ListEntry>> Iterator for Pieces<I> {
    type Item = ListEntry;

    #[inline]
    fn next(&mut self) -> Option<ListEntry> {
        let [mut dst, mut src, mut bytes] = self.rest;
        if bytes == 0 {
            [dst, src, bytes] = self.copies.next()?;
        }
        let length = bytes.min(self.longest);
        self.rest = [dst + length, src + length, bytes - length];
        Some([dst, src, length])
    }
}

/// The copies of a list of blocks: those that follow each other in both pools are one.
#[derive(Clone)]
struct JoinedBlocks<'a> {
    /// The indices, as many of each.
    from: &'a [usize],
    to: &'a [usize],
    /// Length of a block.
    bytes: usize,
    /// The pools that come next.
    pools: slice::Iter<'a, (RawBuffer, RawBuffer)>,
    /// Addresses of the current pools: destination and source.
    addresses: [u64; 2],
    /// How many blocks of the current pools are done.
    at: usize,
}

impl Iterator for JoinedBlocks<'_> {
    type Item = ListEntry;

    #[inline]
    fn next(&mut self) -> Option<ListEntry> {
        loop {
            let is_next = |at: usize, (from, to): (usize, usize)| matches!((self.from.get(at), self.to.get(at)), (Some(one), Some(other)) if (*one, *other) == (from, to));
            if let (Some(&from), Some(&to)) = (self.from.get(self.at), self.to.get(self.at)) {
                let mut count = 1;
                while is_next(self.at + count, (from + count, to + count)) {
                    count += 1;
                }
                self.at += count;
                let [dst, src] = self.addresses;
                let byte = |block: usize| (block * self.bytes) as u64;
                return Some([dst + byte(to), src + byte(from), byte(count)]);
            }
            let (src, dst) = self.pools.next()?;
            // Both have one: it was checked.
            self.addresses = [dst, src].map(|pool| pool.device_address().unwrap_or_default());
            self.at = 0;
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/lists.rs"]
mod tests;
