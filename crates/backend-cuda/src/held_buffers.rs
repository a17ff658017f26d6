//! Large buffers of pinned memory that somebody holds, so that a profiler can tell which are never used.

use parking_lot::Mutex;
use transload_core::{HeldPinned, RawBuffer, WeakBuffer};

use crate::buffer_cache::MAX_PINNED_BYTES;

/// The buffers that are not cached when they are dropped: a weak handle would prevent that.
#[derive(Default)]
pub(crate) struct HeldBuffers(Mutex<Vec<WeakBuffer>>);

impl HeldBuffers {
    pub(crate) fn add(&self, buffer: &RawBuffer) {
        if buffer.allocation_len() > MAX_PINNED_BYTES {
            let mut buffers = self.0.lock();
            buffers.retain(WeakBuffer::is_alive);
            buffers.push(buffer.downgrade());
        }
    }

    pub(crate) fn read(&self) -> Vec<HeldPinned> {
        let buffers = self.0.lock();
        // What the caller drops meanwhile is dropped here, under the lock.
        let alive = buffers.iter().filter_map(WeakBuffer::upgrade).map(|buffer| HeldPinned {
            buffer: buffer.id(),
            bytes: buffer.allocation_len() as u64,
            uses: buffer.uses(),
            is_in_use: buffer.is_in_use(),
        });
        alive.collect()
    }

    /// Returns once no reading keeps a buffer that the caller dropped.
    pub(crate) fn settle(&self) {
        drop(self.0.lock());
    }
}
