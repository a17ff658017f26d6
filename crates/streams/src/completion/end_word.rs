//! The end of a small download that a thread waits for, by a word in mapped memory which the stream writes.
//!
//! To record an event and wait for it takes a microsecond longer (docs/benchmarks, rows `scaling/download`). A word says nothing of
//! errors, so the thread waits for an event after all if it is not written soon. Uploads gain nothing by a word.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use transload_core::events::report;
use transload_memory::{EndWord, EndWords};

use super::timeline::StreamTimeline;

/// How long a thread polls a word.
const POLLED: Duration = Duration::from_micros(50);

/// A stream's last small download, and the word for its end.
pub(crate) struct DownloadEnd {
    /// Its point.
    last: AtomicU64,
    words: Arc<EndWords>,
    /// Locked by the thread that polls it.
    word: Mutex<Option<EndWord>>,
}

impl DownloadEnd {
    pub(crate) fn new(words: &Arc<EndWords>) -> Self {
        Self { last: AtomicU64::new(0), words: Arc::clone(words), word: Mutex::new(None) }
    }

    /// Records that the work of this point is a small download into memory that copy engines write.
    #[inline]
    pub(crate) fn set(&self, point: u64) {
        self.last.store(point, Ordering::Relaxed);
    }
}

impl StreamTimeline {
    /// Polls a word for the end of everything enqueued so far, if `point` is a small download that nothing large precedes. Returns
    /// whether it is complete.
    #[inline]
    pub(crate) fn is_ended_by_word(&self, point: u64) -> bool {
        self.download_end.last.load(Ordering::Relaxed) == point && self.poll_word()
    }

    #[inline(never)]
    fn poll_word(&self) -> bool {
        let points = &self.events.points;
        // Other code may enqueue work that waits for the host, or the stream may be captured.
        if points.is_shared() || self.joins.load(Ordering::Relaxed) || !points.only_a_batch_is_outstanding() {
            return false;
        }
        let Some(mut word) = self.download_end.word.try_lock() else { return false };
        // Read before the word is enqueued: the work of every point up to here precedes it.
        let upto = points.issued();
        let end = match self.download_end.words.enqueue(&mut word, self.stream()) {
            Ok(Some(end)) => end,
            Ok(None) => return false,
            Err(error) => {
                report::call_failed("small downloads end by an event instead of a word", self.device, &error);
                return false;
            }
        };
        let begun = Instant::now();
        while !end.is_written() {
            if begun.elapsed() > POLLED && !transload_core::mutant!("streams/end-word-is-given-up") {
                return false;
            }
        }
        self.advance(upto);
        true
    }
}
