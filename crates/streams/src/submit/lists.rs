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
    /// Enqueues the copies of a batch by one launch, or one for each page that its list fills. What finds no room in a page is
    /// copied by one launch for each joined copy.
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
        while !pieces.is_end() {
            let Some(mut page) = stream.lists.take(stream.id) else { break };
            let (list, count) = page.write(&mut pieces);
            // SAFETY: the caller's promise; the page has `count` pieces there, which stay until the event is complete.
            let launched = unsafe { self.launch_list(list, count, stream.raw()) };
            if let Err(error) = launched {
                stream.lists.put(page);
                return Err(error);
            }
            *in_flight = true;
            // A page whose end is unknown is dropped: it is freed when the device no longer uses it.
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
