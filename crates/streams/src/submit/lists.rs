//! Batches of copies by one kernel, which reads the list of pieces from mapped memory.

use transload_core::{RawBuffer, Result, events::report};
use transload_cuda_sys::DriverError;
use transload_memory::{FixedList, ListEntry};

use super::{batches::Joined, kernels::Kernels};
use crate::completion::timeline::StreamTimeline;

/// Longest pieces of small batches, in bytes. A warp copies a piece, so short ones occupy more of the device.
const SHORT: u64 = 4096;
/// Pieces into which a larger batch is cut at least, if they are not shorter than [`SHORT`]: about two for each warp of an H200.
const CUTS: u64 = 4096;

/// Pieces of the first launch of a long list, and how many times as many each later launch has: a link moves a piece of some KiB about
/// ten times slower than the host writes its entry, so the device is never without work.
const FIRST_PART: usize = 128;
const GROWTH: usize = 8;
/// Least pieces of a list that is launched in parts: a launch takes the host as long as some hundred entries.
const LONG_LIST: usize = 4 * FIRST_PART;
/// Least average bytes of a pair of such a list, for which the device takes longer than the host for the entry.
const LONG_PIECE: u64 = 1024;

/// What is reported if there is no memory for a list.
const NO_LIST: &str = "a batch in place becomes one launch for each copy";

impl StreamTimeline {
    /// Allocates the memory that the list of a batch lacks, if possible.
    #[cold]
    pub(crate) fn prepare_list(&self, pairs: &[(RawBuffer, RawBuffer)]) {
        let prepared = self.lists.prepare(self.context(), self.id, Pieces::of(pairs).most(pairs.len()));
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

impl Kernels {
    /// Enqueues the copies of a batch by one launch for each page that its list fills; a long one is launched in parts, so that the
    /// device copies while the host writes the rest. What finds no room in a page is copied by one launch for each joined copy.
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
        pairs: &[(RawBuffer, RawBuffer)],
        stream: &StreamTimeline,
        in_flight: &mut bool,
    ) -> std::result::Result<(), DriverError> {
        if transload_core::mutant!("streams/task-allocates-no-list") {
            stream.prepare_list(pairs);
        }
        let mut pieces = Pieces::of(pairs);
        let mut part = pieces.first_part(pairs);
        while !pieces.is_end() {
            let Some(mut page) = stream.lists.take(stream.id, 1) else { break };
            let mut is_read = false;
            loop {
                let (list, count) = page.write(&mut pieces.by_ref().take(part));
                // SAFETY: the caller's promise; the page has `count` pieces there, which stay until the event is complete.
                let launched = unsafe { self.launch_list(list, count, stream.raw()) };
                if let Err(error) = launched {
                    // A page whose end is unknown is dropped: it is freed when the device no longer uses it.
                    if !is_read {
                        stream.lists.put(page);
                    }
                    return Err(error);
                }
                is_read |= count > 0;
                *in_flight |= count > 0 && !transload_core::mutant!("streams/parts-in-flight");
                if count < part {
                    break;
                }
                part = part.saturating_mul(GROWTH);
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
    total.div_ceil(CUTS).next_multiple_of(SHORT).max(SHORT)
}

/// The copies of a batch as `transload_copy_list` reads them: cut into pieces, so that none occupies a part of the device for long
/// while the rest is idle.
struct Pieces<'a> {
    copies: Joined<'a>,
    /// What is left of the last copy.
    rest: ListEntry,
    total: u64,
    longest: u64,
}

impl<'a> Pieces<'a> {
    fn of(pairs: &'a [(RawBuffer, RawBuffer)]) -> Self {
        let total = pairs.iter().map(|(src, _)| src.len() as u64).fold(0, u64::saturating_add);
        Self { copies: Joined(pairs), rest: [0; 3], total, longest: longest(total) }
    }

    /// Returns how many pieces of so many pairs there are at most.
    fn most(&self, pairs: usize) -> usize {
        pairs.saturating_add((self.total / self.longest) as usize)
    }

    /// Returns how many of them the first launch has: all, unless the list is long and the device copies over its link.
    fn first_part(&self, pairs: &[(RawBuffer, RawBuffer)]) -> usize {
        let is_long = self.most(pairs.len()) >= LONG_LIST;
        let are_long = self.total >= (pairs.len() as u64).saturating_mul(LONG_PIECE);
        let crosses = |(src, dst): &(RawBuffer, RawBuffer)| src.place().device != dst.place().device;
        if is_long && are_long && pairs.first().is_some_and(crosses) { FIRST_PART } else { usize::MAX }
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

impl Iterator for Pieces<'_> {
    type Item = ListEntry;

    #[inline]
    fn next(&mut self) -> Option<ListEntry> {
        let [mut dst, mut src, mut bytes] = self.rest;
        if bytes == 0 {
            let (from, to, length) = self.copies.next()?;
            // Both have one: it was checked.
            [dst, src] = [to, from].map(|buffer| buffer.device_address().unwrap_or_default());
            bytes = length as u64;
        }
        let length = bytes.min(self.longest);
        self.rest = [dst + length, src + length, bytes - length];
        Some([dst, src, length])
    }
}

#[cfg(test)]
#[path = "../../tests/unit/lists.rs"]
mod tests;
