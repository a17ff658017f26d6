//! A page of mapped host memory, for words that the host writes and streams wait for, or the other way round.

use std::sync::atomic::AtomicU32;

use transload_core::Result;
use transload_cuda_sys::Context;

use super::{free_thread::FreeThread, mapped_page::MappedPage};
use crate::PinnedLimit;

/// Bytes of a page: a word in each pair of cache lines, which the processor may fetch together.
const PAGE: usize = 8192;
/// Bytes from one word to the next.
const PITCH: usize = 128;

/// Words in mapped host memory, zero at first, each on cache lines of its own. May be dropped on any thread, also while a stream
/// waits for a word: it is freed by another thread. No limit or count includes it.
#[derive(Debug)]
pub struct WordPage(MappedPage);

impl WordPage {
    /// Number of words in a page.
    pub const WORDS: usize = PAGE / PITCH;

    /// Allocates a page in a context.
    ///
    /// # Errors
    /// `Io` if the thread that frees pages cannot be started; the driver's.
    pub fn new(context: &Context) -> Result<Self> {
        MappedPage::new(context, PAGE, &PinnedLimit::new(u64::MAX)).map(Self)
    }

    /// Has the memory freed on `thread`.
    pub(crate) fn free_on(self, thread: &FreeThread) {
        self.0.free_on(thread);
    }

    /// Returns a word and its address for the device. The index counts modulo [`WORDS`](Self::WORDS).
    #[must_use]
    pub fn word(&self, index: usize) -> (&AtomicU32, u64) {
        let offset = index % Self::WORDS * PITCH;
        // SAFETY: the offset is within the page, aligned, and initialised; the page lives as long as `self`, and the host accesses it
        // by atomic operations only.
        let word = unsafe { self.0.host_address().add(offset).cast::<AtomicU32>().as_ref() };
        (word, self.0.device_address() + offset as u64)
    }
}
