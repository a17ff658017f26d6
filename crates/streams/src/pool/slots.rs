//! Which streams a group has: changed under a lock, and read by each thread in a copy of its own.

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

/// A thread remembers so many groups.
const CACHED_GROUPS: usize = 32;
/// Where a thread remembers whose turn it is, whatever the workload.
pub(crate) const TURN: WorkloadType = WorkloadType::Compute;
/// A thread was not in the group yet.
const NEVER_USED: u8 = u8::MAX;
/// One of a thread's leases of a group in so many looks whether the group could do with fewer streams.
const LEASES_PER_SHRINK_CHECK: u32 = 1021;

/// The places of a group, as of one moment.
#[derive(Clone, Default)]
pub(crate) struct SlotsSnapshot {
    places: Vec<Option<Arc<StreamShards>>>,
    /// Which have a stream.
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
    /// Never used again, so that what a thread remembers of a group is not taken for another's.
    id: u64,
    version: AtomicU64,
    filled: AtomicU64,
    state: Mutex<State>,
}

struct State {
    pooled: Vec<Option<Pooled>>,
    snapshot: Arc<SlotsSnapshot>,
}

/// What a thread remembers of a group.
pub(crate) struct ThreadCache {
    group: u64,
    version: u64,
    pub(crate) snapshot: Arc<SlotsSnapshot>,
    pub(crate) shard_index: ShardIndex,
    at: [u8; WORKLOADS.len()],
    leases: u32,
    /// For so many leases the thread keeps to its place without a look at other threads' leases.
    pub(crate) keeps: u32,
    /// For so many leases of a workload the thread keeps to the least loaded of many streams with work, if it enqueues small
    /// copies only.
    pub(crate) stays: [u8; WORKLOADS.len()],
}

thread_local! {
    static CACHES: RefCell<[Option<ThreadCache>; CACHED_GROUPS]> = const { RefCell::new([const { None }; CACHED_GROUPS]) };
}

impl StreamSlots {
    /// Empty places; at most [`MAX_STREAMS`].
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

    /// The bits of the places that have a stream.
    pub(crate) fn filled(&self) -> u64 {
        self.filled.load(Ordering::Relaxed)
    }

    /// DriverCalls `choose` with what the calling thread remembers, brought up to date. It must not lease.
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
        // A thread that is ending remembers nothing.
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
            // So that threads of few leases look as well, now and then.
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

    /// Puts a stream into the first empty place of `among` and leases it; returns which, or the stream where all are filled.
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

    /// Takes out a stream that nobody leases, where `may` agrees, told the bits of all that are filled.
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

    /// The stream of a place and how many leases it has. Does not lease it.
    pub(crate) fn look(&self, index: usize) -> Option<(CudaStream, usize)> {
        let state = self.state.lock();
        let pooled = state.pooled.get(index)?.as_ref()?;
        Some((pooled.stream.clone(), pooled.found.leases()))
    }

    /// Leases the stream of a place, whatever it does.
    pub(crate) fn lease(&self, index: usize) -> Option<Arc<StreamShard>> {
        let shards = Arc::clone(self.state.lock().snapshot.places.get(index)?.as_ref()?);
        shards.lease(ShardIndex::here()).map(|(shard, _)| shard)
    }

    /// How many places there are.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().pooled.len()
    }
}

impl ThreadCache {
    /// The place whose turn it is, of those `there`.
    #[inline]
    pub(crate) fn next(&mut self, there: u64) -> Option<usize> {
        let last = self.at[TURN as usize];
        let index = if last == NEVER_USED { start(there)? } else { from(last.wrapping_add(1), there)? };
        self.at[TURN as usize] = index;
        Some(usize::from(index))
    }

    /// Where the thread looks first for a workload: where it was last.
    #[inline]
    pub(crate) fn first(&mut self, workload: WorkloadType, there: u64) -> Option<usize> {
        let last = self.at[workload as usize];
        let index = if last == NEVER_USED { start(there)? } else { from(last, there)? };
        self.at[workload as usize] = index;
        Some(usize::from(index))
    }

    /// The thread looks there first from now on.
    #[inline]
    pub(crate) fn stay(&mut self, workload: WorkloadType, index: usize) {
        self.at[workload as usize] = (index % MAX_STREAMS) as u8;
    }

    /// Whether this lease is the one in so many.
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

/// Where a thread begins: each at another place.
#[cold]
fn start(there: u64) -> Option<u8> {
    let mut rest = there;
    for _ in 0..thread_number().checked_rem(there.count_ones() as usize)? {
        rest &= rest - 1;
    }
    Some(rest.trailing_zeros() as u8)
}

/// The first bit of `there` from `index` on, all around.
#[inline]
fn from(index: u8, there: u64) -> Option<u8> {
    let ahead = there.rotate_right(u32::from(index)).trailing_zeros() as u8;
    (there != 0).then_some(index.wrapping_add(ahead) % MAX_STREAMS as u8)
}

/// The bit of a place.
#[inline]
pub(crate) fn bit(index: usize) -> u64 {
    1 << (index % MAX_STREAMS)
}
