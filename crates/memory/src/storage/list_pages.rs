//! Pages of mapped host memory for lists that kernels read.

use std::{
    collections::VecDeque,
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use transload_core::{
    Result, TimelineId,
    host_access::{self, HostAccess},
};
use transload_cuda_sys::{Context, DriverError, Event, EventTiming, Stream};

use super::{free_thread::FreeThread, mapped_page::MappedPage};
use crate::{PinnedLimit, lift};

/// Bytes of a page: it holds a list of 64 MiB in pieces of 4 KiB, which is gathered or scattered by one launch then.
const PAGE: usize = 512 << 10;
/// Entries of a page.
const ENTRIES: usize = PAGE / size_of::<ListEntry>();
/// Most pages that are kept, in use or not.
const MOST: usize = 64;
/// Most pages of other streams that are queried for one that is free.
const QUERIED: usize = 3;

/// An entry of a list: three numbers, as a kernel reads them.
pub type ListEntry = [u64; 3];

/// The pages of a device. One stream fills a page with one list after another; when it is full, it is free for any stream as soon as
/// no kernel reads it. [`CudaMemoryManager::drain`](crate::CudaMemoryManager::drain) and allocations that are short of memory free
/// those that no kernel reads.
#[derive(Debug, Default)]
pub struct ListPages {
    /// That of the device's first memory manager.
    limit: OnceLock<Arc<PinnedLimit>>,
    /// The longest unused first.
    kept: Mutex<VecDeque<ListPage>>,
}

/// A page, taken out of its [`ListPages`]. May be dropped while a kernel reads it.
#[derive(Debug)]
pub struct ListPage {
    memory: MappedPage,
    /// Entries that are written. They are not written again before `read` is complete.
    used: usize,
    /// The stream whose kernels read it.
    stream: Option<TimelineId>,
    /// The end of the last launch that reads it.
    read: Event,
}

/// A list in memory of its own, which stays as it was written. May be dropped while a kernel reads it.
#[derive(Debug)]
pub struct FixedList {
    memory: MappedPage,
    entries: usize,
}

impl FixedList {
    /// Returns the address of the first entry for the device, and the number of entries.
    #[must_use]
    pub fn address(&self) -> (u64, usize) {
        (self.memory.device_address(), self.entries)
    }
}

impl ListPages {
    pub(crate) fn set_limit(&self, limit: &Arc<PinnedLimit>) {
        let _first = self.limit.get_or_init(|| Arc::clone(limit));
    }

    /// Allocates what a stream's next lists, of `entries` in all, lack of room, up to 32 MiB for all streams. Takes a few microseconds
    /// if nothing lacks.
    ///
    /// # Errors
    /// `OutOfMemory` at the limit of pinned memory; `Io` if the thread that frees lists cannot be started; the driver's.
    pub fn prepare(&self, context: &Context, stream: TimelineId, entries: usize) -> Result<()> {
        let lacking = {
            let kept = self.kept.lock();
            let rooms = kept.iter().map(|page| page.room(stream));
            let room = rooms.filter(|room| *room >= entries.min(ENTRIES)).sum();
            let pages = entries.saturating_sub(room).div_ceil(ENTRIES);
            let others = kept.iter().filter(|page| page.room(stream) < entries.min(ENTRIES));
            let free = others.take(pages).filter(|page| page.is_free(false)).count();
            (pages - free).min(MOST.saturating_sub(kept.len()))
        };
        for _ in 0..lacking {
            let limit = self.limit();
            let read = Event::new(context, EventTiming::Disabled).map_err(lift)?;
            let page =
                ListPage { memory: MappedPage::new(context, PAGE, limit)?, used: 0, stream: None, read };
            self.kept.lock().push_front(page);
        }
        Ok(())
    }

    fn limit(&self) -> &Arc<PinnedLimit> {
        self.limit.get_or_init(|| PinnedLimit::new(u64::MAX))
    }

    /// Writes a list to memory of its own. It counts against the limit of pinned memory until it is dropped.
    ///
    /// # Errors
    /// `OutOfMemory` at the limit of pinned memory; `Io` if the thread that frees lists cannot be started; the driver's.
    pub fn fixed(&self, context: &Context, entries: &[ListEntry]) -> Result<FixedList> {
        let bytes = size_of_val(entries);
        let memory = MappedPage::new(context, bytes.max(1), self.limit())?;
        let start = memory.host_address();
        // SAFETY: the memory has so many bytes, is aligned to a page, and nothing else uses it yet.
        unsafe {
            start.cast::<ListEntry>().copy_from_nonoverlapping(NonNull::from(entries).cast(), entries.len())
        };
        host_access::note(start.as_ptr().addr(), bytes, HostAccess::Write);
        Ok(FixedList { memory, entries: entries.len() })
    }

    /// Returns a page with room for a list of the stream, if there is one: for all of its `entries`, if possible. Does not allocate.
    #[must_use]
    pub fn take(&self, stream: TimelineId, entries: usize) -> Option<ListPage> {
        let mut kept = self.kept.lock();
        let own = |least: usize| kept.iter().position(|page| page.room(stream) >= least.max(1));
        if let Some(at) = own(entries.min(ENTRIES)) {
            return kept.remove(at);
        }
        let Some(at) = kept.iter().take(QUERIED).position(|page| page.is_free(false)) else {
            return own(1).and_then(|at| kept.remove(at));
        };
        let mut page = kept.remove(at)?;
        (page.used, page.stream) = (0, Some(stream));
        Some(page)
    }

    /// Keeps a page for later lists. Lists in it are read by launches before the last [`ListPage::record`], or not at all.
    pub fn put(&self, page: ListPage) {
        self.kept.lock().push_back(page);
    }

    /// Has the pages freed that no kernel reads. Returns their bytes.
    pub(crate) fn trim(&self, thread: &FreeThread) -> u64 {
        let free: VecDeque<_> = {
            let mut kept = self.kept.lock();
            let (free, used) = std::mem::take(&mut *kept).into_iter().partition(|page| page.is_free(true));
            *kept = used;
            free
        };
        let bytes = (free.len() * PAGE) as u64;
        free.into_iter().for_each(|page| page.memory.free_on(thread));
        bytes
    }
}

impl ListPage {
    /// Returns how many entries of the stream's next list fit.
    fn room(&self, stream: TimelineId) -> usize {
        if self.stream == Some(stream) { ENTRIES - self.used } else { 0 }
    }

    /// Returns whether no kernel reads it, and `unknown` if the driver fails to tell: a failed query says nothing about the kernel, but
    /// freeing waits for it.
    fn is_free(&self, unknown: bool) -> bool {
        self.read.is_done().unwrap_or(unknown) || transload_core::mutant!("memory/list-in-use")
    }

    /// Writes the next entries of a list, at most so many, as far as they fit. Returns the address of the first for the device, their number, and
    /// the rest. By value, since what is written might else be a state of the iterator.
    pub fn write<I: Iterator<Item = ListEntry>>(&mut self, mut entries: I, most: usize) -> (u64, usize, I) {
        let offset = self.used * size_of::<ListEntry>();
        let (start, room) = (self.memory.host_address(), (ENTRIES - self.used).min(most));
        let mut count = 0;
        while count < room
            && let Some(entry) = entries.next()
        {
            // SAFETY: the page has room for `ENTRIES` entries and is aligned. Only this value writes to it, and no kernel reads the
            // entries from `used` on.
            unsafe { start.cast::<ListEntry>().add(self.used + count).write(entry) };
            count += 1;
        }
        self.used += count;
        host_access::note(start.as_ptr().addr() + offset, count * size_of::<ListEntry>(), HostAccess::Write);
        (self.memory.device_address() + offset as u64, count, entries)
    }

    /// Records that what was launched so far on the stream reads the page: the one for which it was taken.
    ///
    /// # Errors
    /// The driver's. Drop the page then.
    pub fn record(&self, stream: &Stream) -> Result<(), DriverError> {
        self.read.record(stream)
    }
}
