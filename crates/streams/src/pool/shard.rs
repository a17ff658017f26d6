//! Leases of streams, counted per shard of the threads: a lease is a handle of a shard.
//!
//! Leasing and dropping change only the count of the thread's own shard. Other threads read it.

use std::{
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use transload_core::{
    BatchHalf, BlockList, DeviceId, Fence, HalfPairs, Operation, Place, Queue, QueueLease, RawBuffer, Result,
    Stamp, StreamPriority, Timeline, Timing,
};

use crate::{CudaStream, thread_number::thread_number};

/// Maximum number of streams of a group: one bit each in a word.
pub(crate) const MAX_STREAMS: usize = 64;
/// Number of shards.
const SHARDS: usize = 16;

/// Index of a thread's shard.
#[derive(Clone, Copy)]
pub(crate) struct ShardIndex(usize);

impl ShardIndex {
    /// Returns the calling thread's.
    pub(crate) fn here() -> Self {
        Self(thread_number() % SHARDS)
    }
}

/// A stream as leased by one shard of the threads. Its handles are leases, except the group's own.
// On its own pair of cache lines, as is the preceding reference count.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct StreamShard {
    stream: CudaStream,
    shared: Arc<Shared>,
}

/// State shared by all shards of a stream; rarely written.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shared {
    /// Bit mask of shards that were ever leased.
    used: AtomicU64,
    /// Workload of the latest lease.
    note: AtomicU64,
}

impl StreamShard {
    /// Sets the workload of the latest lease.
    #[inline]
    pub(crate) fn set_note(&self, note: u64) {
        if self.note() != note {
            self.shared.note.store(note, Ordering::Relaxed);
        }
    }

    /// Returns the workload of the latest lease.
    #[inline]
    pub(crate) fn note(&self) -> u64 {
        self.shared.note.load(Ordering::Relaxed)
    }
}

impl Deref for StreamShard {
    type Target = CudaStream;

    #[inline]
    fn deref(&self) -> &CudaStream {
        &self.stream
    }
}

// SAFETY: everything is forwarded to the stream.
unsafe impl Queue for StreamShard {
    fn device(&self) -> DeviceId {
        Queue::device(&self.stream)
    }

    fn priority(&self) -> StreamPriority {
        self.stream.priority()
    }

    #[inline]
    fn timeline(&self) -> &Arc<dyn Timeline> {
        self.stream.timeline()
    }

    #[inline]
    fn can_copy(&self, src: Place, dst: Place) -> bool {
        self.stream.can_copy(src, dst)
    }

    fn can_wait_for(&self, fence: &Fence) -> bool {
        self.stream.can_wait_for(fence)
    }

    fn prepare_waits(&self) {
        self.stream.prepare_waits();
    }

    fn prepare_batch(&self, pairs: usize, bytes: u64) {
        self.stream.prepare_batch(pairs, bytes);
    }

    #[inline]
    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence> {
        // SAFETY: the caller's promise.
        unsafe { self.stream.enqueue(operation, after, timing) }
    }

    unsafe fn enqueue_half(
        &self,
        half: BatchHalf,
        pairs: HalfPairs<'_>,
        scratch: &RawBuffer,
        after: &[Fence],
    ) -> Result<Fence> {
        // SAFETY: the caller's promise.
        unsafe { self.stream.enqueue_half(half, pairs, scratch, after) }
    }

    unsafe fn enqueue_blocks(&self, blocks: &BlockList, after: &[Fence], timing: Timing) -> Result<Fence> {
        // SAFETY: the caller's promise.
        unsafe { self.stream.enqueue_blocks(blocks, after, timing) }
    }

    fn current_fence(&self) -> Option<Fence> {
        self.stream.current_fence()
    }

    fn occupy(&self, time: Duration) -> Result<Fence> {
        self.stream.occupy(time)
    }

    fn stamp(&self) -> Result<Stamp> {
        self.stream.stamp()
    }

    fn outstanding(&self) -> u64 {
        self.stream.outstanding()
    }

    fn raw_handle(&self) -> Option<usize> {
        self.stream.raw_handle()
    }

    fn with_raw_handle(&self, call: &mut dyn FnMut(usize)) -> Result<()> {
        self.stream.with_raw_handle(call)
    }
}

/// A leased stream of a pool; dropping it ends the lease, also with work in flight. May outlive the pool. Usable from
/// any thread.
///
/// A clone of the inner stream keeps it alive and is not a lease.
#[derive(Debug)]
pub struct StreamLease {
    shard: Arc<StreamShard>,
}

impl StreamLease {
    #[inline]
    pub(crate) fn new(shard: Arc<StreamShard>) -> Self {
        Self { shard }
    }

    /// Converts the lease to core's type.
    #[must_use]
    pub fn into_queue(self) -> QueueLease {
        QueueLease::new(self.shard as Arc<dyn Queue>)
    }
}

impl Deref for StreamLease {
    type Target = CudaStream;

    #[inline]
    fn deref(&self) -> &CudaStream {
        &self.shard
    }
}

/// Weak references to a stream's shards, for lookup.
pub(crate) struct StreamShards {
    shards: [Weak<StreamShard>; SHARDS],
    shared: Arc<Shared>,
}

impl StreamShards {
    fn of(shards: &[Arc<StreamShard>], shared: Arc<Shared>) -> Arc<Self> {
        let shard = |shard_index| shards.get(shard_index).map(Arc::downgrade).unwrap_or_default();
        Arc::new(Self { shards: std::array::from_fn(shard), shared })
    }

    /// Leases the stream and returns the number of its other leases. Of two concurrent threads at least one sees the
    /// other. `None` if the stream was retired.
    #[inline]
    pub(crate) fn lease(&self, ShardIndex(shard_index): ShardIndex) -> Option<(Arc<StreamShard>, usize)> {
        let used = &self.shared.used;
        if used.load(Ordering::Relaxed) & (1 << shard_index) == 0 {
            used.fetch_or(1 << shard_index, Ordering::Relaxed);
        }
        let shard = self.shards[shard_index % SHARDS].upgrade()?;
        // Of two concurrent upgrades at least one thread sees the other. On x86 the atomic operation itself ensures
        // that.
        #[cfg(not(target_arch = "x86_64"))]
        std::sync::atomic::fence(Ordering::SeqCst);
        // The group's handle, and this one.
        let own = Arc::strong_count(&shard).saturating_sub(2);
        Some((shard, own + self.leases_in(!(1 << shard_index))))
    }

    /// Like [`lease`](Self::lease), but only if this shard has no lease; ignores other shards.
    #[inline]
    pub(crate) fn lease_if_unleased(&self, ShardIndex(shard_index): ShardIndex) -> Option<Arc<StreamShard>> {
        let shard = self.shards[shard_index % SHARDS].upgrade()?;
        (Arc::strong_count(&shard) == 2).then_some(shard)
    }

    /// Returns the number of leases.
    #[inline]
    pub(crate) fn leases(&self) -> usize {
        self.leases_in(u64::MAX)
    }

    #[inline]
    fn leases_in(&self, shares: u64) -> usize {
        let mut rest = self.shared.used.load(Ordering::Relaxed) & shares;
        let mut leases = 0;
        while rest != 0 {
            let shard = &self.shards[rest.trailing_zeros() as usize % SHARDS];
            leases += shard.strong_count().saturating_sub(1);
            rest &= rest - 1;
        }
        leases
    }
}

/// A group's stream and its shards, dropped with this unless leased.
pub(crate) struct Pooled {
    pub(crate) stream: CudaStream,
    shards: Vec<Arc<StreamShard>>,
    pub(crate) found: Arc<StreamShards>,
}

impl Pooled {
    pub(crate) fn new(stream: CudaStream) -> Self {
        let shared = Arc::<Shared>::default();
        let shard = || Arc::new(StreamShard { stream: stream.clone(), shared: Arc::clone(&shared) });
        let shards: Vec<_> = (0..SHARDS).map(|_| shard()).collect();
        let found = StreamShards::of(&shards, shared);
        Self { stream, shards, found }
    }

    /// Retires the shards, so that no new lease is possible; `Err` with the stream, with new shards as needed, if one
    /// is leased.
    pub(crate) fn retire(mut self) -> Result<CudaStream, Self> {
        let mut leased = false;
        let given_up = |shard| {
            let own = if leased { Err(shard) } else { Arc::try_unwrap(shard) };
            leased |= own.is_err();
            own.map_or_else(|shard| shard, Arc::new)
        };
        self.shards = std::mem::take(&mut self.shards).into_iter().map(given_up).collect();
        if !leased || transload_core::mutant!("streams/leased-streams-stay") {
            return Ok(self.stream);
        }
        self.found = StreamShards::of(&self.shards, Arc::clone(&self.found.shared));
        Err(self)
    }
}
