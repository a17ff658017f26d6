//! The stream slots of a priority group: changed under a lock, read through a per-thread cache.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use transload_core::WorkloadType;

use super::{
    shard::{MAX_STREAMS, Pooled, ShardIndex, StreamShard, StreamShards},
    strategy::WORKLOADS,
};
use crate::{CudaStream, thread_number::thread_number};

/// Groups cached per thread.
const CACHED_GROUPS: usize = 32;
/// Cache entry of the round-robin position, for all workloads.
pub(crate) const TURN: WorkloadType = WorkloadType::Compute;
/// The thread has not used the group yet.
const NEVER_USED: u8 = u8::MAX;
/// Leases of a thread between two checks for idle streams to retire.
const LEASES_PER_SHRINK_CHECK: u32 = 1021;

/// A snapshot of a group's slots.
#[derive(Clone, Default)]
pub(crate) struct SlotsSnapshot {
    places: Vec<Option<Arc<StreamShards>>>,
    /// Bit mask of the filled slots.
    pub(crate) filled: u64,
}

impl SlotsSnapshot {
    #[inline]
    pub(crate) fn shards(&self, index: usize) -> Option<&StreamShards> {
        self.places.get(index)?.as_deref()
    }
}

/// The places of a group.
pub(crate) struct StreamSlots {
    /// Never reused, so that stale cache entries do not match.
    id: u64,
    version: AtomicU64,
    filled: AtomicU64,
    state: Mutex<State>,
}

struct State {
    pooled: Vec<Option<Pooled>>,
    snapshot: Arc<SlotsSnapshot>,
}

/// A thread's cached state of a group.
pub(crate) struct ThreadCache {
    group: u64,
    version: u64,
    pub(crate) snapshot: Arc<SlotsSnapshot>,
    pub(crate) shard_index: ShardIndex,
    at: [u8; WORKLOADS.len()],
    leases: u32,
    /// Remaining leases for which the thread stays with its slot without checking others.
    pub(crate) keeps: u32,
    /// Remaining leases per workload for which the thread stays with a busy stream, if it enqueues small copies only.
    pub(crate) stays: [u8; WORKLOADS.len()],
}

thread_local! {
    static CACHES: RefCell<[Option<ThreadCache>; CACHED_GROUPS]> = const { RefCell::new([const { None }; CACHED_GROUPS]) };
}

impl StreamSlots {
    /// Creates empty slots; at most [`MAX_STREAMS`].
    pub(crate) fn new(places: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let pooled: Vec<_> = (0..places.min(MAX_STREAMS)).map(|_| None).collect();
        let snapshot = SlotsSnapshot { places: pooled.iter().map(|_| None).collect(), filled: 0 };
        let state = State { pooled, snapshot: Arc::new(snapshot) };
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            version: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// Returns the bit mask of filled slots.
    pub(crate) fn filled(&self) -> u64 {
        self.filled.load(Ordering::Relaxed)
    }

    /// Calls `choose` with the thread's cache, updated. It must not lease.
    #[inline]
    pub(crate) fn with<R>(&self, choose: impl Fn(&mut ThreadCache) -> R) -> R {
        let chosen = CACHES.try_with(|groups| {
            let mut groups = groups.try_borrow_mut().ok()?;
            let place = &mut groups[self.id as usize % CACHED_GROUPS];
            let cache = match place {
                Some(cache)
                    if cache.group == self.id && cache.version == self.version.load(Ordering::Acquire) =>
                {
                    cache
                }
                _ => self.renew(place),
            };
            Some(choose(cache))
        });
        // An ending thread has no cache.
        chosen.ok().flatten().unwrap_or_else(|| choose(self.renew(&mut None)))
    }

    #[cold]
    fn renew<'a>(&self, place: &'a mut Option<ThreadCache>) -> &'a mut ThreadCache {
        let state = self.state.lock();
        let (version, snapshot) = (self.version.load(Ordering::Relaxed), Arc::clone(&state.snapshot));
        drop(state);
        let fresh = ThreadCache {
            group: self.id,
            version,
            snapshot,
            shard_index: ShardIndex::here(),
            at: [NEVER_USED; WORKLOADS.len()],
            // Staggered, so that threads with few leases check too.
            leases: thread_number() as u32 % LEASES_PER_SHRINK_CHECK * 617 % LEASES_PER_SHRINK_CHECK,
            keeps: 0,
            stays: [0; WORKLOADS.len()],
        };
        let before = place.take().filter(|cache| cache.group == self.id);
        place.insert(match before {
            Some(ThreadCache { at, leases, .. }) => ThreadCache { at, leases, ..fresh },
            None => fresh,
        })
    }

    /// Inserts a stream into the first empty slot of `among` and leases it; returns the stream if all are filled.
    pub(crate) fn put(
        &self,
        among: u64,
        stream: CudaStream,
    ) -> Result<(usize, Arc<StreamShard>), CudaStream> {
        let pooled = Pooled::new(stream);
        let mut state = self.state.lock();
        let found = (0..state.pooled.len())
            .find(|index| among & bit(*index) != 0 && state.snapshot.filled & bit(*index) == 0);
        let held = pooled.found.lease(ShardIndex::here());
        let (Some(index), Some((shard, _))) = (found, held) else {
            drop(state);
            return Err(pooled.stream);
        };
        state.pooled[index] = Some(pooled);
        self.publish(&mut state);
        Ok((index, shard))
    }

    /// Removes an unleased stream if `may`, given the filled slots, agrees.
    pub(crate) fn take(&self, index: usize, may: impl FnOnce(u64) -> bool) -> Option<CudaStream> {
        let mut state = self.state.lock();
        let filled = state.snapshot.filled;
        if filled & bit(index) == 0 || !may(filled) {
            return None;
        }
        let pooled = state.pooled.get_mut(index)?.take()?;
        let taken = match pooled.retire() {
            Ok(stream) => Some(stream),
            Err(leased) => {
                state.pooled[index] = Some(leased);
                None
            }
        };
        self.publish(&mut state);
        taken
    }

    fn publish(&self, state: &mut State) {
        let places: Vec<_> =
            state.pooled.iter().map(|place| place.as_ref().map(|pooled| Arc::clone(&pooled.found))).collect();
        let filled = places.iter().enumerate().filter(|(_, place)| place.is_some());
        let filled = filled.fold(0, |bits, (index, _)| bits | bit(index));
        state.snapshot = Arc::new(SlotsSnapshot { places, filled });
        self.filled.store(filled, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns a slot's stream and its number of leases, without leasing it.
    pub(crate) fn look(&self, index: usize) -> Option<(CudaStream, usize)> {
        let state = self.state.lock();
        let pooled = state.pooled.get(index)?.as_ref()?;
        Some((pooled.stream.clone(), pooled.found.leases()))
    }

    /// Leases a slot's stream, busy or not.
    pub(crate) fn lease(&self, index: usize) -> Option<Arc<StreamShard>> {
        let shards = Arc::clone(self.state.lock().snapshot.places.get(index)?.as_ref()?);
        shards.lease(ShardIndex::here()).map(|(shard, _)| shard)
    }

    /// Returns the number of slots.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().pooled.len()
    }
}

impl ThreadCache {
    /// Returns the next slot in round-robin order.
    #[inline]
    pub(crate) fn next(&mut self, there: u64) -> Option<usize> {
        let last = self.at[TURN as usize];
        let index = if last == NEVER_USED { start(there)? } else { from(last.wrapping_add(1), there)? };
        self.at[TURN as usize] = index;
        Some(usize::from(index))
    }

    /// Returns the slot to check first: the last one used.
    #[inline]
    pub(crate) fn first(&mut self, workload: WorkloadType, there: u64) -> Option<usize> {
        let last = self.at[workload as usize];
        let index = if last == NEVER_USED { start(there)? } else { from(last, there)? };
        self.at[workload as usize] = index;
        Some(usize::from(index))
    }

    /// Sets the slot to check first.
    #[inline]
    pub(crate) fn stay(&mut self, workload: WorkloadType, index: usize) {
        self.at[workload as usize] = (index % MAX_STREAMS) as u8;
    }

    /// Returns whether to check for idle streams now.
    #[inline]
    pub(crate) fn is_shrink_due(&mut self) -> bool {
        self.leases += 1;
        let due = self.leases >= LEASES_PER_SHRINK_CHECK;
        if due {
            self.leases = 0;
        }
        due
    }
}

/// Returns the thread's first slot, different for each thread.
#[cold]
fn start(there: u64) -> Option<u8> {
    let mut rest = there;
    for _ in 0..thread_number().checked_rem(there.count_ones() as usize)? {
        rest &= rest - 1;
    }
    Some(rest.trailing_zeros() as u8)
}

/// Returns the first bit of `there` from `index` on, cyclically.
#[inline]
fn from(index: u8, there: u64) -> Option<u8> {
    let ahead = there.rotate_right(u32::from(index)).trailing_zeros() as u8;
    (there != 0).then_some(index.wrapping_add(ahead) % MAX_STREAMS as u8)
}

/// Returns the bit of a slot.
#[inline]
pub(crate) fn bit(index: usize) -> u64 {
    1 << (index % MAX_STREAMS)
}
