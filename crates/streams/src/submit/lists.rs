//! Batches of copies by one kernel, which reads the list of pieces from mapped memory.

use std::{collections::VecDeque, iter, sync::Arc, time::Duration};

use parking_lot::Mutex;
use transload_core::{
    RawBuffer, Result,
    events::report,
    host_access::{self, HostAccess},
};
use transload_cuda_sys::{Context, DriverError, Event, EventTiming};
use transload_memory::{MappedPage, PinnedLimit, lift};

use super::{batches::joined, kernels::Kernels};
use crate::completion::timeline::StreamTimeline;

/// Bytes of a page of a list.
const PAGE: usize = 256 << 10;
/// Pieces of a page.
const PIECES: usize = PAGE / size_of::<Piece>();
/// Pages in use that are queried before another one is allocated.
const QUERIED: usize = 3;
/// Longest pieces of small batches, in bytes. A warp copies a piece, so short ones occupy more of the device.
const SHORT: u64 = 4096;
/// Pieces into which a larger batch is cut at least, if they are not shorter than [`SHORT`]: about two for each warp of an H200.
const CUTS: u64 = 4096;

/// What a warp copies: destination, source and length in bytes, as `transload_copy_list` reads it.
type Piece = [u64; 3];

/// A page of mapped memory, and the end of the last launch that reads it.
#[derive(Debug)]
struct Page {
    memory: MappedPage,
    read: Event,
}

/// Pages for lists of a context. One is free again when the last kernel that reads it is complete.
#[derive(Debug, Default)]
pub(super) struct ListPages(Mutex<VecDeque<Page>>);

impl ListPages {
    /// Returns a page that no kernel reads. Allocates one only if those queried are in use.
    ///
    /// # Errors
    /// `OutOfMemory` at the limit of pinned memory; the driver's.
    fn take(&self, context: &Context, limit: Option<&Arc<PinnedLimit>>) -> Result<Page> {
        for _ in 0..QUERIED {
            // The longest unused first. Queried without the lock.
            let Some(page) = self.0.lock().pop_front() else { break };
            let is_free = page.read.is_done().map_err(lift)?;
            if is_free || transload_core::mutant!("streams/list-in-use") {
                return Ok(page);
            }
            self.put(page);
        }
        let unlimited;
        let limit = match limit {
            Some(limit) => limit,
            None => {
                unlimited = PinnedLimit::new(u64::MAX);
                &unlimited
            }
        };
        let read = Event::new(context, EventTiming::Disabled).map_err(lift)?;
        Ok(Page { memory: MappedPage::new(context, PAGE, limit)?, read })
    }

    fn put(&self, page: Page) {
        self.0.lock().push_back(page);
    }
}

impl Drop for ListPages {
    fn drop(&mut self) {
        for Page { memory, read } in self.0.get_mut().drain(..) {
            // The others are freed when the device no longer uses them.
            if read.is_done().is_ok_and(|is_free| is_free) {
                memory.free_within(MAX_FREE);
            }
        }
    }
}

impl Page {
    /// Writes the next pieces, as many as fit. Returns their number.
    fn write(&mut self, pieces: &mut impl Iterator<Item = Piece>) -> usize {
        let start = self.memory.host_address().cast::<Piece>();
        host_access::note(start.as_ptr().addr(), self.memory.bytes(), HostAccess::Write);
        let mut count = 0;
        for piece in pieces.take(PIECES) {
            // SAFETY: the page has room for `PIECES` pieces, is aligned, and no one else uses it.
            unsafe { start.add(count).write(piece) };
            count += 1;
        }
        count
    }
}

impl Kernels {
    /// Enqueues the copies of a batch by one launch, or one for each page that its list fills. Without memory for the list, by one
    /// launch for each copy.
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
        let total = pairs.iter().map(|(src, _)| src.len() as u64).fold(0, u64::saturating_add);
        let mut pieces = pieces(pairs, longest(total)).peekable();
        while pieces.peek().is_some() {
            let page = self.lists.take(stream.context(), stream.pinned_limit.as_ref());
            let mut page = match page {
                Ok(page) => page,
                Err(error) => {
                    report::call_failed(NO_LIST, stream.device, &error);
                    for [dst, src, bytes] in pieces {
                        // SAFETY: the caller's promise.
                        unsafe { self.copy(src, dst, bytes as usize, stream.raw()) }?;
                        *in_flight = true;
                    }
                    return Ok(());
                }
            };
            let count = page.write(&mut pieces);
            // SAFETY: the caller's promise; the page has `count` pieces, which stay until the event is complete.
            let launched = unsafe { self.launch_list(page.memory.device_address(), count, stream.raw()) };
            if let Err(error) = launched {
                self.lists.put(page);
                return Err(error);
            }
            *in_flight = true;
            // A page whose end is unknown is dropped: it is freed when the device no longer uses it.
            page.read.record(stream.stream())?;
            self.lists.put(page);
        }
        Ok(())
    }
}

/// How long the drop of a context's last stream waits for a page to be freed, which waits for other work of the device.
const MAX_FREE: Duration = Duration::from_millis(100);

/// What is reported if there is no memory for a list.
const NO_LIST: &str = "a batch in place becomes one launch for each copy";

/// Returns the length in bytes of the longest pieces into which a batch is cut.
fn longest(total: u64) -> u64 {
    total.div_ceil(CUTS).next_multiple_of(SHORT).max(SHORT)
}

/// Returns the copies, cut into pieces of at most `longest` bytes, so that none occupies a part of the device for long while the rest
/// is idle.
fn pieces(pairs: &[(RawBuffer, RawBuffer)], longest: u64) -> impl Iterator<Item = Piece> {
    joined(pairs).flat_map(move |(src, dst, bytes)| {
        // Both have one: it was checked.
        let (src, dst) = (src.device_address().unwrap_or_default(), dst.device_address().unwrap_or_default());
        let mut done = 0;
        iter::from_fn(move || {
            let length = (bytes as u64 - done).min(longest);
            let piece = [dst + done, src + done, length];
            done += length;
            (length > 0).then_some(piece)
        })
    })
}

#[cfg(test)]
#[path = "../../tests/unit/lists.rs"]
mod tests;
