//! Batches of copies by one kernel, which reads the list of pieces from mapped memory.

use std::iter;

use transload_core::{RawBuffer, events::report};
use transload_cuda_sys::DriverError;
use transload_memory::ListEntry;

use super::{batches::joined, kernels::Kernels};
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
        let prepared = self.lists.prepare(self.context(), self.id, pieces(pairs).count());
        if let Err(error) = prepared {
            report::call_failed(NO_LIST, self.device, &error);
        }
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
        let (mut pieces, mut done) = (pieces(pairs).peekable(), 0);
        while pieces.peek().is_some() {
            let Some(mut page) = stream.lists.take(stream.id) else { break };
            let (list, count) = page.write(&mut pieces.by_ref().inspect(|[_, _, bytes]| done += bytes));
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
        for [dst, src, bytes] in copies(pairs) {
            let start = done.min(bytes);
            done -= start;
            if start < bytes {
                // SAFETY: the caller's promise.
                unsafe { self.copy(src + start, dst + start, (bytes - start) as usize, stream.raw()) }?;
                *in_flight = true;
            }
        }
        Ok(())
    }
}

/// Returns the length in bytes of the longest pieces into which a batch is cut.
fn longest(total: u64) -> u64 {
    total.div_ceil(CUTS).next_multiple_of(SHORT).max(SHORT)
}

/// Returns destination, source and length in bytes of each joined copy.
fn copies(pairs: &[(RawBuffer, RawBuffer)]) -> impl Iterator<Item = ListEntry> {
    joined(pairs).map(|(src, dst, bytes)| {
        // Both have one: it was checked.
        let [dst, src] = [dst, src].map(|buffer| buffer.device_address().unwrap_or_default());
        [dst, src, bytes as u64]
    })
}

/// Returns the copies as `transload_copy_list` reads them: cut into pieces, so that none occupies a part of the device for long while
/// the rest is idle.
fn pieces(pairs: &[(RawBuffer, RawBuffer)]) -> impl Iterator<Item = ListEntry> {
    let total = pairs.iter().map(|(src, _)| src.len() as u64).fold(0, u64::saturating_add);
    let longest = longest(total);
    copies(pairs).flat_map(move |[dst, src, bytes]| {
        let mut done = 0;
        iter::from_fn(move || {
            let length = (bytes - done).min(longest);
            let piece = [dst + done, src + done, length];
            done += length;
            (length > 0).then_some(piece)
        })
    })
}

#[cfg(test)]
#[path = "../../tests/unit/lists.rs"]
mod tests;
