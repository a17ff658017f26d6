//! The sleep protocol of the workers: no wake is lost, and a burst of work does not wake every worker at once.
//!
//! A worker is running, *searching* or *sleeping*. Work is published first, then announced by [`Idle::notify`], which wakes
//! a sleeper only if no worker searches. A searcher that finds work calls [`Idle::found`], which wakes the next sleeper if
//! more is left. A searcher that finds none calls [`Idle::park`], which checks for work once more after it is counted
//! among the sleepers. Both sides separate their write from their read by a sequentially consistent fence, so at least one
//! of them sees the other.

use crate::sync::{AtomicUsize, Condvar, Mutex, Ordering, fence};

/// Counts of workers by what they do.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    searching: AtomicUsize,
    sleeping: AtomicUsize,
    /// Wakes that no sleeper has taken yet. Each already counts as a searcher.
    wakes: Mutex<usize>,
    woken: Condvar,
}

impl Idle {
    /// Announces published work. Returns whether a further thread is needed, since none searches and none sleeps.
    pub(crate) fn notify(&self) -> bool {
        fence(Ordering::SeqCst);
        self.searching.load(Ordering::Relaxed) == 0 && self.wake(1) == 0
    }

    /// Announces `count` pieces of work at once: wakes one sleeper for each that has no searcher. Returns how many further
    /// threads are useful.
    pub(crate) fn notify_several(&self, count: usize) -> usize {
        fence(Ordering::SeqCst);
        let missing = count.saturating_sub(self.searching.load(Ordering::Relaxed));
        missing - self.wake(missing)
    }

    /// Returns how many workers search.
    pub(crate) fn searching(&self) -> usize {
        self.searching.load(Ordering::Relaxed)
    }

    /// Counts the caller, or a thread that it starts, as a searcher.
    pub(crate) fn begin(&self) {
        self.searching.fetch_add(1, Ordering::Relaxed);
    }

    /// Uncounts a searcher that found work. Returns whether a further thread is needed, like [`notify`](Self::notify).
    pub(crate) fn found(&self, more: impl FnOnce() -> bool) -> bool {
        let last = self.searching.fetch_sub(1, Ordering::Relaxed) == 1;
        fence(Ordering::SeqCst);
        last && more() && !transload_core::mutant!("executor/wake-the-next") && self.wake(1) == 0
    }

    /// Blocks the calling searcher until there is work. Returns at once if `has_work` says so. The caller searches again
    /// when it returns.
    pub(crate) fn park(&self, has_work: impl FnOnce() -> bool) {
        let mut wakes = self.wakes.lock();
        self.sleeping.fetch_add(1, Ordering::Relaxed);
        self.searching.fetch_sub(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if has_work() && !transload_core::mutant!("executor/check-again") {
            self.sleeping.fetch_sub(1, Ordering::Relaxed);
            self.searching.fetch_add(1, Ordering::Relaxed);
            return;
        }
        while *wakes == 0 {
            wakes = self.woken.wait(wakes);
        }
        *wakes -= 1;
        self.sleeping.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes every sleeper, at shutdown.
    pub(crate) fn wake_all(&self) {
        let mut wakes = self.wakes.lock();
        let asleep = self.sleeping.load(Ordering::Relaxed) - *wakes;
        *wakes += asleep;
        self.searching.fetch_add(asleep, Ordering::Relaxed);
        drop(wakes);
        self.woken.notify_all();
    }

    /// Wakes up to `most` sleepers, which count as searching from now on. Returns how many. Locks once: who is woken takes the lock too,
    /// and could hold up the caller before each further wake.
    fn wake(&self, most: usize) -> usize {
        // A worker that is not counted yet checks for work after it is counted.
        if most == 0 || self.sleeping.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut wakes = self.wakes.lock();
        let count = most.min(self.sleeping.load(Ordering::Relaxed) - *wakes);
        *wakes += count;
        self.searching.fetch_add(count, Ordering::Relaxed);
        drop(wakes);
        (0..count).for_each(|_| self.woken.notify_one());
        count
    }
}
