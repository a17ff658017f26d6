//! Words in mapped host memory that streams write and the host polls.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU32, Ordering},
};

use parking_lot::Mutex;
use transload_core::{
    Result,
    host_access::{self, HostAccess},
};
use transload_cuda_sys::{AsStream, Context, Stream};

use super::{free_thread::FreeThread, word_page::WordPage};
use crate::lift;

/// Downloads that use no word after a call for one failed: a shortage of memory ends.
const BACKOFF: u32 = 256;

/// The words of a device. [`CudaMemoryManager::drain`](crate::CudaMemoryManager::drain), and allocations that are short of memory, free
/// them if no thread polls one.
#[derive(Debug, Default)]
pub struct EndWords {
    page: Mutex<Option<Arc<Page>>>,
    /// Downloads left that use no word.
    skips: AtomicU32,
}

#[derive(Debug)]
struct Page {
    words: WordPage,
    free: Mutex<Vec<FreeWord>>,
}

#[derive(Debug)]
struct FreeWord {
    index: usize,
    /// The last value that was written.
    value: u32,
}

/// A word of one stream, until it is freed.
#[derive(Debug)]
pub struct EndWord {
    page: Weak<Page>,
    index: usize,
    /// The last value that was enqueued.
    value: u32,
}

/// A value that a stream will write.
#[derive(Debug)]
pub struct PendingEnd {
    page: Arc<Page>,
    index: usize,
    value: u32,
}

impl EndWords {
    /// Has a stream of the device write the next value of its word after everything enqueued so far. Takes a word for it if it has none,
    /// which allocates memory if the device has no words. Returns `None` if the driver has no such words, if all are taken, or if a call
    /// for one failed lately.
    ///
    /// # Errors
    /// The driver's.
    pub fn enqueue(&self, word: &mut Option<EndWord>, stream: &Stream) -> Result<Option<PendingEnd>> {
        if !Stream::can_write_words() {
            return Ok(None);
        }
        let skips = self.skips.load(Ordering::Relaxed);
        if skips > 0 {
            // Of several threads' decrements one may be lost.
            self.skips.store(skips - 1, Ordering::Relaxed);
            return Ok(None);
        }
        let written = self.write(word, stream);
        if written.is_err() {
            self.skips.store(BACKOFF, Ordering::Relaxed);
        }
        written
    }

    fn write(&self, word: &mut Option<EndWord>, stream: &Stream) -> Result<Option<PendingEnd>> {
        let kept = word.as_ref().and_then(|word| word.page.upgrade());
        let page = match kept {
            Some(page) => page,
            None => self.page(stream.context())?,
        };
        let Some(EndWord { index, value, .. }) = EndWord::kept_or_taken(word, &page) else { return Ok(None) };
        *value = value.wrapping_add(1);
        // SAFETY: the page is freed by a call that waits for the device, and the host accesses the word by atomic operations only.
        unsafe { stream.write_word(page.words.word(*index).1, *value) }.map_err(lift)?;
        Ok(Some(PendingEnd { index: *index, value: *value, page }))
    }

    fn page(&self, context: &Context) -> Result<Arc<Page>> {
        if let Some(page) = &*self.page.lock() {
            return Ok(Arc::clone(page));
        }
        let free = (0..WordPage::WORDS).map(|index| FreeWord { index, value: 0 }).collect();
        let made = Arc::new(Page { words: WordPage::new(context)?, free: Mutex::new(free) });
        // Another thread may have been faster.
        Ok(Arc::clone(self.page.lock().get_or_insert(made)))
    }

    /// Has the memory freed if no thread polls a word.
    pub(crate) fn trim(&self, thread: &FreeThread) {
        let unused = self.page.lock().take_if(|page| Arc::strong_count(page) == 1);
        if let Some(page) = unused.and_then(Arc::into_inner) {
            page.words.free_on(thread);
        }
    }
}

impl EndWord {
    /// Returns the word if it is of this page, else one that is taken from it.
    fn kept_or_taken<'a>(word: &'a mut Option<Self>, page: &Arc<Page>) -> Option<&'a mut Self> {
        if word.as_ref().is_none_or(|word| !std::ptr::eq(word.page.as_ptr(), Arc::as_ptr(page))) {
            let FreeWord { index, value } = page.free.lock().pop()?;
            *word = Some(Self { page: Arc::downgrade(page), index, value });
        }
        word.as_mut()
    }
}

impl Drop for EndWord {
    fn drop(&mut self) {
        let Some(page) = self.page.upgrade() else { return };
        let (index, value) = (self.index, self.value);
        // A word that the stream may yet write serves no other stream.
        if page.has(index, value) {
            page.free.lock().push(FreeWord { index, value });
        }
    }
}

impl PendingEnd {
    /// Returns whether the stream has written the value. It writes in order, so the word has no later one.
    #[must_use]
    #[inline]
    pub fn is_written(&self) -> bool {
        self.page.has(self.index, self.value)
    }
}

impl Page {
    #[inline]
    fn has(&self, index: usize, value: u32) -> bool {
        let word = self.words.word(index).0;
        // Acquire: the host sees what the device wrote before.
        let has = word.load(Ordering::Acquire) == value || transload_core::mutant!("memory/end-word-is-read");
        if has {
            host_access::note(word.as_ptr().addr(), size_of::<u32>(), HostAccess::Read);
        }
        has
    }
}
