//! Caches dropped idle buffers for the next request of the same length on the same thread.
//!
//! Each thread has its own shard, so threads share no state while their shards serve them. A cached buffer is still a
//! live block of its stream: the shards are emptied when memory is short or exact numbers are needed.

use transload_core::{RawBuffer, Recycler, SpareBuffer};

use super::{
    shard::{Kept, Use},
    shared::Shared,
};
use crate::{CudaStream, thread_number::thread_number};

/// Shards per allocator; further threads share them.
const SHARDS: usize = 64;

/// A thread's cached buffers. Each owns a reference to the allocator.
type Shard = super::shard::Shard<SpareBuffer>;

pub(super) fn shards() -> Box<[Shard]> {
    (0..SHARDS).map(|_| Shard::new()).collect()
}

impl Shared {
    #[inline]
    fn own_shard(&self) -> &Shard {
        &self.shards[thread_number() % SHARDS]
    }

    /// Returns a cached buffer of this length that nothing uses.
    #[inline]
    pub(super) fn kept_buffer(&self, len: usize) -> Option<RawBuffer> {
        self.kept_if(len, SpareBuffer::renew)
    }

    /// Like [`kept_buffer`](Self::kept_buffer), but polls the driver for the oldest one in flight: its state covers
    /// all that the stream used before.
    pub(super) fn polled_kept_buffer(&self, len: usize) -> Option<RawBuffer> {
        let _held = self.track_transit();
        self.kept_if(len, |spare| {
            spare.in_flight().iter().all(CudaStream::is_complete_by_event) && spare.renew()
        })
    }

    /// `is_complete` runs with the shard unlocked: fences are dropped.
    #[inline]
    fn kept_if(&self, len: usize, is_complete: impl FnOnce(&mut SpareBuffer) -> bool) -> Option<RawBuffer> {
        let shard = self.own_shard();
        match shard.take(len) {
            Kept::Idle(spare) => Some(spare.into_buffer()),
            Kept::Busy(mut spare) => {
                if is_complete(&mut spare) {
                    return Some(spare.into_buffer());
                }
                drop(shard.put(len, spare, Use::StillBusy));
                None
            }
            Kept::Nothing => None,
        }
    }

    /// Frees the calling thread's cached buffers.
    pub(super) fn empty_own_cache(&self) {
        self.empty(self.own_shard(), false);
    }

    /// Frees all cached buffers. Returns whether there were any.
    pub(super) fn empty_caches(&self) -> bool {
        self.shards.iter().filter(|shard| self.empty(shard, false)).count() > 0
    }

    /// Frees all cached buffers and disables caching. The caller has a reference to the allocator.
    pub(super) fn close_caches(&self) {
        self.shards.iter().for_each(|shard| {
            self.empty(shard, true);
        });
    }

    fn empty(&self, shard: &Shard, close: bool) -> bool {
        // A thread that is short of memory waits for this guard.
        let _held = self.track_transit();
        let spares = shard.take_all(close);
        // Dropped without the lock: they have fences.
        !spares.is_empty()
    }
}

// SAFETY: once the buffer is in the shard, or dropped, nothing of `self` is used; the type contains locks.
unsafe impl Recycler for Shared {
    #[inline]
    fn recycle(&self, spare: SpareBuffer, is_idle: bool) {
        let in_use = if is_idle { Use::Idle } else { Use::Busy };
        let no_room = self.own_shard().put(spare.len(), spare, in_use);
        drop(no_room);
    }
}
