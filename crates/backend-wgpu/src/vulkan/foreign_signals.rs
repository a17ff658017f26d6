//! Semaphores that another API signals. If it loses its device first, the host signals in its place: a submission that waits for them would never run.

use std::sync::Weak;

use parking_lot::Mutex;

use super::{Semaphore, Vulkan};

/// A semaphore that another API signals.
pub(crate) trait ForeignSignal: Send + Sync {
    /// Returns the semaphore, with the last value that the other API was told to signal.
    fn last(&self) -> (&Semaphore, u64);

    /// Returns whether the other API has lost its device: it signals nothing any more. Does not block.
    fn is_lost(&self) -> bool;
}

/// Those of a device, which are kept by their owners.
pub(super) type ForeignSignals = Mutex<Vec<Weak<dyn ForeignSignal>>>;

impl Vulkan {
    /// Has waits for a semaphore end if the other API loses its device.
    #[cfg(feature = "cuda")]
    pub(crate) fn watch(&self, signal: Weak<impl ForeignSignal + 'static>) {
        let mut signals = self.foreign_signals.lock();
        signals.retain(|signal| signal.strong_count() > 0);
        signals.push(signal);
    }

    /// Signals the values that another API was told to signal before it lost its device. Threads call it that wait for a queue or poll it.
    pub(super) fn end_lost_signals(&self) {
        // Locked until the end, since each value is signalled once.
        for signal in self.foreign_signals.lock().iter().filter_map(Weak::upgrade) {
            let (semaphore, value) = signal.last();
            if semaphore.is_before(value) && signal.is_lost() {
                // If that fails, the caller waits on.
                let _signalled = semaphore.signal(value);
            }
        }
    }
}
