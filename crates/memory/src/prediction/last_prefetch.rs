//! Whether a queue's last prefetch is over, asked once in a while, so that nobody goes on waiting for it.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use transload_core::Fence;

/// Launches without a prefetch between the last one and a question.
const EVERY: u32 = 8;
/// There is nothing to ask.
const NOTHING: u32 = u32::MAX;

/// The last prefetch of one queue. A prefetch is a use of its range until somebody has asked the driver whether it is over,
/// and nobody need do so: launches wait for it on the device. Until then each launch that uses the allocation finds it in its
/// way, which costs more than the launch's other bookkeeping. So it is asked for when launches follow that need no prefetch.
///
/// Usable from any thread.
#[derive(Debug)]
pub struct LastPrefetch {
    /// Launches since.
    launches: AtomicU32,
    fence: Mutex<Option<Fence>>,
}

impl Default for LastPrefetch {
    fn default() -> Self {
        Self { launches: AtomicU32::new(NOTHING), fence: Mutex::new(None) }
    }
}

impl LastPrefetch {
    /// A prefetch was enqueued, behind all others of the queue.
    pub fn sent(&self, fence: Fence) {
        let mut last = self.fence.lock();
        let before = last.replace(fence);
        self.launches.store(0, Ordering::Relaxed);
        drop(last);
        // Not under the lock: it may be the last handle of its queue.
        drop(before);
    }

    /// A launch needed no prefetch. It may ask the driver, and never waits.
    #[inline]
    pub fn not_needed(&self) {
        let launches = self.launches.load(Ordering::Relaxed);
        if launches == NOTHING {
            return;
        }
        if launches < EVERY {
            self.launches.store(launches + 1, Ordering::Relaxed);
        } else {
            self.ask();
        }
    }

    #[cold]
    fn ask(&self) {
        let mut last = self.fence.lock();
        self.launches.store(NOTHING, Ordering::Relaxed);
        let asked = last.take();
        drop(last);
        let Some(fence) = asked.filter(|fence| !fence.is_over()) else { return };
        let mut last = self.fence.lock();
        if last.is_none() {
            self.launches.store(0, Ordering::Relaxed);
            *last = Some(fence);
            return;
        }
        drop(last);
        drop(fence);
    }
}
