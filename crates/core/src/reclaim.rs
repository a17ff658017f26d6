//! Memory that was dropped while an operation still used it waits here for the operation's end.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;

use crate::{Fence, Result, Storage, hazard::Dependencies};

/// Keeps what was dropped early, each with the fences of the work that still touches it.
///
/// A backend has one, sweeps it when it allocates or is idle, and drains it when it is asked to. Dropping a buffer
/// never waits.
#[derive(Default)]
pub struct Reclaimer {
    parked: Mutex<Vec<Parked>>,
    /// Length of the list, to make sweeping an empty one a single load.
    count: AtomicUsize,
}

struct Parked {
    until: Dependencies,
    storage: Box<dyn Storage>,
}

impl Parked {
    fn is_over(&self) -> bool {
        self.until.iter().all(Fence::is_over)
    }
}

impl Reclaimer {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn park(&self, until: Dependencies, storage: Box<dyn Storage>) {
        let mut parked = self.parked.lock();
        parked.push(Parked { until, storage });
        self.count.store(parked.len(), Ordering::Release);
    }

    /// How many allocations wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frees what is no longer in use; asks the driver but does not wait. Answers how many allocations were freed.
    pub fn sweep(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        // Fences are polled and memory is freed outside the lock: both call into a driver.
        let waiting = self.take();
        let (over, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(Parked::is_over);
        let freed = over.len();
        drop(over);
        self.put_back(waiting);
        freed
    }

    /// Waits for everything that is parked, then frees it.
    ///
    /// # Errors
    /// The first error of an operation that was waited for; all memory is freed all the same.
    pub fn drain(&self) -> Result<()> {
        let mut outcome = Ok(());
        while !self.is_empty() {
            for parked in self.take() {
                for fence in &parked.until {
                    outcome = outcome.and(fence.wait());
                }
                drop(parked.storage);
            }
        }
        outcome
    }

    fn take(&self) -> Vec<Parked> {
        let mut parked = self.parked.lock();
        self.count.store(0, Ordering::Release);
        std::mem::take(&mut *parked)
    }

    fn put_back(&self, waiting: Vec<Parked>) {
        if waiting.is_empty() {
            return;
        }
        let mut parked = self.parked.lock();
        parked.extend(waiting);
        self.count.store(parked.len(), Ordering::Release);
    }
}

impl Drop for Reclaimer {
    /// Never waits. What is still in use when even the reclaimer goes is leaked rather than freed under the device's
    /// hands; `drain` before that leaves nothing.
    fn drop(&mut self) {
        self.sweep();
        for parked in self.take() {
            std::mem::forget(parked.storage);
        }
    }
}

impl fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaimer").field("parked", &self.len()).finish()
    }
}
