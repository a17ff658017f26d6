//! Words in mapped memory that the host writes when its work ends, and streams wait for.
//!
//! A word counts up: each use waits for the next value, which satisfies all earlier waits too. So a word is free again as soon as
//! the host has written it, whether or not the stream has seen that.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use transload_core::{Error, Fence, Result, TimelineId, events::report};
use transload_cuda_sys::{Context, Stream};
use transload_memory::{FreeDeferral, WordPage};

use super::timeline::StreamTimeline;

/// What is reported if words cannot be used.
const HOST_WAITS: &str = "the host waits for host work instead of the stream";

/// The words of one context.
pub(crate) struct Words {
    page: WordPage,
    free: Mutex<Vec<FreeWord>>,
    /// Whether the driver refused a wait, as some do in virtual machines. The host waits from then on.
    are_refused: AtomicBool,
}

/// An unused word.
struct FreeWord {
    index: usize,
    /// The last value that was waited for.
    value: u32,
}

/// A word in use. Writes its value when told, or at the drop.
struct PendingWord {
    words: Arc<Words>,
    index: usize,
    value: u32,
    is_written: AtomicBool,
}

/// The word that will be written at the end of host work. Does not delay that: the timeline of the work owns the [`PendingWord`].
#[derive(Clone, Copy)]
pub(crate) struct KeptWord {
    timeline: TimelineId,
    point: u64,
    index: usize,
    value: u32,
}

/// The words by context handle, at most one set per context. They keep their context alive, so its handle is not reused. The key
/// makes it unnecessary to upgrade, and possibly drop, other entries under the lock.
static OF_CONTEXTS: Mutex<Vec<(usize, Weak<Words>)>> = Mutex::new(Vec::new());

impl Words {
    /// Returns the context's words, which it allocates if there are none.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn of(context: &Context) -> Result<Arc<Self>> {
        let key = context.as_raw().addr();
        if let Some(found) = Self::find(&OF_CONTEXTS.lock(), key) {
            return Ok(found);
        }
        let free = (0..WordPage::WORDS).map(|index| FreeWord { index, value: 0 }).collect();
        let (page, free) = (WordPage::new(context)?, Mutex::new(free));
        let made = Arc::new(Self { page, free, are_refused: AtomicBool::new(false) });
        let mut known = OF_CONTEXTS.lock();
        // Another thread may have been faster. Its words are dropped without the lock.
        if let Some(found) = Self::find(&known, key) {
            drop(known);
            return Ok(found);
        }
        known.retain(|(_, words)| words.strong_count() > 0);
        known.push((key, Arc::downgrade(&made)));
        Ok(made)
    }

    fn find(known: &[(usize, Weak<Self>)], key: usize) -> Option<Arc<Self>> {
        known.iter().filter(|(of, _)| *of == key).find_map(|(_, words)| words.upgrade())
    }

    fn take(self: &Arc<Self>) -> Option<PendingWord> {
        if self.are_refused.load(Ordering::Relaxed) {
            return None;
        }
        let FreeWord { index, value } = self.free.lock().pop()?;
        let (words, value) = (Arc::clone(self), value.wrapping_add(1));
        Some(PendingWord { words, index, value, is_written: AtomicBool::new(false) })
    }

    /// Returns whether the word has the value, or a later one.
    fn is_written(&self, word: &KeptWord) -> bool {
        self.page.word(word.index).0.load(Ordering::Acquire).wrapping_sub(word.value).cast_signed() >= 0
    }
}

impl PendingWord {
    /// Lets the stream go on. Calls no driver.
    fn write(&self) {
        if self.is_written.swap(true, Ordering::AcqRel) {
            return;
        }
        // Release: the device sees all bytes that the host wrote before.
        self.words.page.word(self.index).0.store(self.value, Ordering::Release);
        self.words.free.lock().push(FreeWord { index: self.index, value: self.value });
    }
}

impl Drop for PendingWord {
    fn drop(&mut self) {
        self.write();
    }
}

impl StreamTimeline {
    /// Returns whether the stream can wait for host work on the device: see [`Timeline::ends_by_host_alone`]. If so, keeps what it needs
    /// for that until the work ends: a submission that must not block cannot lose it to another thread.
    ///
    /// [`Timeline::ends_by_host_alone`]: transload_core::Timeline::ends_by_host_alone
    #[cold]
    pub(crate) fn can_wait_for_host_work(&self, fence: &Fence) -> bool {
        if transload_core::mutant!("streams/task-allocates-no-words") {
            self.prepare_waits();
        }
        if self.words.get().is_none() && !transload_core::mutant!("streams/task-uses-words-of-others") {
            // Another stream's, for which this allocates nothing.
            let found = Words::find(&OF_CONTEXTS.lock(), self.context().as_raw().addr());
            let _set = found.map(|words| self.words.set(Some(words)));
        }
        let words = self.words.get().and_then(Option::as_ref);
        words.is_some_and(|words| self.keep_word(words, fence).is_some())
    }

    /// Allocates the words at the first call, if the stream may use them. If that fails, the host waits instead from then on.
    #[cold]
    pub(crate) fn prepare_waits(&self) {
        if !self.device_waits.load(Ordering::Relaxed) || !Stream::can_wait_words() {
            return;
        }
        let allocate = || {
            let refused = |error: &Error| report::call_failed(HOST_WAITS, self.device, error);
            Words::of(self.context()).inspect_err(refused).ok()
        };
        self.words.get_or_init(allocate);
    }

    /// Returns the word for a fence of host work, which is kept or taken now.
    fn keep_word<'a>(&self, words: &'a Arc<Words>, fence: &Fence) -> Option<(&'a Words, KeptWord)> {
        let (timeline, point) = (fence.timeline(), fence.point());
        if !timeline.device().is_cpu()
            || !self.device_waits.load(Ordering::Relaxed)
            || !timeline.ends_by_host_alone(point)
        {
            return None;
        }
        let mut all_kept = self.kept_words.lock();
        let is_same = |kept: &&KeptWord| kept.timeline == timeline.id() && kept.point == point;
        if let Some(kept) = all_kept.iter().find(is_same) {
            return (!words.are_refused.load(Ordering::Relaxed)).then_some((words, *kept));
        }
        // No free may stand still because of the stream: calls of other threads would wait for it.
        let (word, deferral) = (words.take()?, FreeDeferral::try_begin()?);
        let kept = KeptWord { timeline: timeline.id(), point, index: word.index, value: word.value };
        all_kept.retain(|kept| !words.is_written(kept));
        all_kept.push(kept);
        drop(all_kept);
        // Before the stream waits, so that nothing can keep the host from writing.
        timeline.signal_at(
            point,
            Box::new(move || {
                let _until_dropped = &deferral;
                word.write();
            }),
        );
        Some((words, kept))
    }

    /// Makes later work of this stream wait for a fence of host work, on the device if that is still possible, else on the host. Returns
    /// whether the stream waits, or `None` if it cannot wait for such a fence.
    #[cold]
    pub(crate) fn wait_for_host_work(&self, fence: &Fence) -> Option<Result<bool>> {
        let (timeline, point) = (fence.timeline(), fence.point());
        if self.events.pending.lock().waits_for(timeline.id(), point) {
            return Some(Ok(false));
        }
        let words = self.words.get().and_then(Option::as_ref);
        let kept = words.and_then(|words| self.keep_word(words, fence));
        let Some((words, word)) = kept else {
            if !timeline.ends_by_host_alone(point) {
                return fence.is_known_complete().then_some(Ok(false));
            }
            // Its own transfer reports the error.
            let _over = fence.wait();
            return Some(Ok(false));
        };
        // Waiters of the open batch must not wait for the host.
        if let Err(error) = self.flush_batch() {
            return Some(Err(self.lift(error)));
        }
        if transload_core::mutant!("streams/waits-for-words") {
            return Some(Ok(true));
        }
        // SAFETY: the word lives until the device no longer uses it, and was given away to the thread that ends the work, which calls
        // no driver before that. The stream is not captured: the caller checked.
        let waits = unsafe { self.stream().wait_word(words.page.word(word.index).1, word.value) };
        Some(match waits {
            Ok(()) => {
                self.events.pending.lock().note_wait(timeline.id(), point);
                Ok(true)
            }
            Err(error) if error.is_sticky() => Err(self.lift(error)),
            Err(error) => {
                report::call_failed(HOST_WAITS, self.device, &error);
                words.are_refused.store(true, Ordering::Relaxed);
                // Its own transfer reports the error.
                let _over = fence.wait();
                Ok(false)
            }
        })
    }
}
