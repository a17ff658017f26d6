//! Idle buffers that were dropped, kept whole for the next request of the same thread and length.
//!
//! Each thread has a shard of its own, so threads share no state while their own buffers serve them. A kept buffer is still a
//! live block of its stream: whatever needs memory, or exact numbers, empties the shards first.

use std::collections::VecDeque;

use parking_lot::Mutex;
use transload_core::{RawBuffer, Recycler, SpareBuffer, mutant};

use super::{
    shared::Shared,
    tally::{CLASSES, class},
};
use crate::thread_number::thread_number;

/// Shards of an allocator. More threads than that share them.
const SHARDS: usize = 64;
/// Lengths that a shard keeps buffers of; a power of two.
const BINS: usize = 32;
/// The most buffers of one length that a shard keeps, and the most bytes of them, but always one buffer.
const KEPT: usize = 256;
const KEPT_BYTES: usize = 256 << 20;

/// What the threads of one allocator keep. Each kept buffer owns a reference to the allocator.
pub(super) struct Caches {
    shards: Box<[Shard]>,
}

/// What one thread keeps. Alone in its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The allocator's last handle was dropped: nothing is kept any more.
    is_closed: bool,
    /// None before the first one is kept.
    bins: Vec<Bin>,
    /// Requests served, by the class of their size.
    served: [u64; CLASSES],
}

/// Kept buffers of one length.
#[derive(Default)]
struct Bin {
    len: usize,
    idle: Vec<SpareBuffer>,
    /// In flight when they were dropped.
    busy: VecDeque<SpareBuffer>,
}

/// What a shard has for a request.
enum Found {
    Idle(SpareBuffer),
    /// The one that was dropped first; perhaps nothing uses it any more.
    Busy(SpareBuffer),
    Nothing,
}

impl Bin {
    fn take_all(&mut self) -> impl Iterator<Item = SpareBuffer> + use<> {
        std::mem::take(&mut self.idle).into_iter().chain(std::mem::take(&mut self.busy))
    }
}

/// Where the bin of a length is.
#[inline]
fn bin_of(len: usize) -> usize {
    /// 2^64 divided by the golden ratio: neighbouring lengths come apart.
    const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
    ((len as u64).wrapping_mul(SPREAD) >> (u64::BITS - BINS.trailing_zeros())) as usize
}

impl Shard {
    #[inline]
    fn take(&self, len: usize) -> Found {
        let mut state = self.state.lock();
        let State { bins, served, .. } = &mut *state;
        let Some(bin) = bins.get_mut(bin_of(len)).filter(|bin| bin.len == len) else { return Found::Nothing };
        if let Some(spare) = bin.idle.pop() {
            served[class(len as u64)] += 1;
            return Found::Idle(spare);
        }
        bin.busy.pop_front().map_or(Found::Nothing, Found::Busy)
    }

    fn count(&self, len: usize) {
        self.state.lock().served[class(len as u64)] += 1;
    }

    /// Keeps a buffer, without touching the shard once that is done: the buffer may have had the last reference to the allocator,
    /// and another thread may have freed it by then. One that is still busy after it was taken goes back to the front. Returns what there is no room for: the
    /// buffer, or those that were in its place.
    #[inline]
    fn put(&self, spare: SpareBuffer, is_idle: bool, front: bool) -> Vec<SpareBuffer> {
        let len = spare.len();
        let mut state = self.state.lock();
        let mut out = Vec::new();
        if state.is_closed && !mutant!("streams/closed-cache-keeps-nothing") {
            out.push(spare);
            return out;
        }
        if state.bins.is_empty() {
            state.bins.resize_with(BINS, Bin::default);
        }
        let bin = &mut state.bins[bin_of(len)];
        if bin.len != len {
            bin.len = len;
            out.extend(bin.take_all());
        }
        let kept = bin.idle.len() + bin.busy.len();
        if kept >= KEPT || (kept > 0 && (kept + 1).saturating_mul(len) > KEPT_BYTES) {
            out.push(spare);
        } else if is_idle {
            bin.idle.push(spare);
        } else if front {
            bin.busy.push_front(spare);
        } else {
            bin.busy.push_back(spare);
        }
        out
    }

    fn take_all(&self, close: bool) -> Vec<SpareBuffer> {
        let mut state = self.state.lock();
        state.is_closed |= close;
        state.bins.iter_mut().flat_map(Bin::take_all).collect()
    }
}

impl Caches {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    #[inline]
    fn own(&self) -> &Shard {
        &self.shards[thread_number() % SHARDS]
    }

    /// Requests served so far, by the class of their size.
    pub(super) fn served(&self) -> [u64; CLASSES] {
        let mut sum = [0; CLASSES];
        for shard in &self.shards {
            for (sum, served) in sum.iter_mut().zip(shard.state.lock().served) {
                *sum += served;
            }
        }
        sum
    }
}

impl Shared {
    /// A kept buffer of this length that nothing uses.
    #[inline]
    pub(super) fn kept_buffer(&self, len: usize) -> Option<RawBuffer> {
        let shard = self.caches.own();
        match shard.take(len) {
            Found::Idle(spare) => Some(spare.into_buffer()),
            Found::Busy(mut spare) => {
                // With the shard unlocked: fences are dropped.
                if spare.renew() {
                    shard.count(len);
                    return Some(spare.into_buffer());
                }
                drop(shard.put(spare, false, true));
                None
            }
            Found::Nothing => None,
        }
    }

    /// Frees what the calling thread keeps.
    pub(super) fn empty_own_cache(&self) {
        self.empty(self.caches.own(), false);
    }

    /// Frees what all threads keep. Returns whether that was anything.
    pub(super) fn empty_caches(&self) -> bool {
        self.caches.shards.iter().filter(|shard| self.empty(shard, false)).count() > 0
    }

    /// Frees what all threads keep, and keeps nothing from now on. The caller has a reference to the allocator.
    pub(super) fn close_caches(&self) {
        self.caches.shards.iter().for_each(|shard| {
            self.empty(shard, true);
        });
    }

    fn empty(&self, shard: &Shard, close: bool) -> bool {
        // Another thread that finds too little memory waits for this to be put down.
        let _held = self.hold();
        let spares = shard.take_all(close);
        // With the shard unlocked: fences are dropped.
        let any = !spares.is_empty();
        drop(spares);
        any
    }
}

// SAFETY: once the buffer is in the shard, or dropped, nothing of `self` is used; the type contains locks.
unsafe impl Recycler for Shared {
    #[inline]
    fn recycle(&self, spare: SpareBuffer, is_idle: bool) {
        let no_room = self.caches.own().put(spare, is_idle, false);
        drop(no_room);
    }
}
