//! Streams as threads lease them: a shard is a stream for one share of the threads, and a lease is a handle of a shard.
//!
//! Leasing and giving back change the count of the thread's own shards only. Other threads read it.

use std::{
    ops::Deref,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{
    DeviceId, Fence, Operation, Place, Queue, QueueLease, Result, StreamPriority, Timeline, Timing,
};

use crate::{CudaStream, thread_number::thread_number};

/// Streams of a group at most: one bit each in a word.
pub(crate) const MAX_STREAMS: usize = 64;
/// How many shares the threads are divided into.
const SHARDS: usize = 16;

/// Which shard_index of the threads a thread is in.
#[derive(Clone, Copy)]
pub(crate) struct ShardIndex(usize);

impl ShardIndex {
    /// The calling thread's.
    pub(crate) fn here() -> Self {
        Self(thread_number() % SHARDS)
    }
}

/// A stream as one share of the threads leases it. Its handles are leases, but for the group's.
// On lines of its own, fetched in pairs, as is the count of its handles before it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct StreamShard {
    stream: CudaStream,
    shared: Arc<Shared>,
}

/// What all shards of a stream share: it seldom changes.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shared {
    /// Which shards were leased, ever.
    used: AtomicU64,
    /// What the latest lease was for.
    note: AtomicU64,
}

impl StreamShard {
    /// Says what the lease is for.
    #[inline]
    pub(crate) fn set_note(&self, note: u64) {
        if self.note() != note {
            self.shared.note.store(note, Ordering::Relaxed);
        }
    }

    /// What the latest lease of the stream is for.
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

// SAFETY: everything is the stream's own.
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

    #[inline]
    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence> {
        // SAFETY: the caller's promise.
        unsafe { self.stream.enqueue(operation, after, timing) }
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

/// A stream of a pool, until dropped; work may still be in flight then. May outlive the pool. Usable from any thread.
///
/// The stream can be cloned out of it; a clone keeps the stream alive and is no lease.
#[derive(Debug)]
pub struct StreamLease {
    shard: Arc<StreamShard>,
}

impl StreamLease {
    #[inline]
    pub(crate) fn new(shard: Arc<StreamShard>) -> Self {
        Self { shard }
    }

    /// The same lease as core's type.
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

/// The shards of a stream as threads find them. Does not keep the stream.
pub(crate) struct StreamShards {
    shards: [Weak<StreamShard>; SHARDS],
    shared: Arc<Shared>,
}

impl StreamShards {
    fn of(shards: &[Arc<StreamShard>], shared: Arc<Shared>) -> Arc<Self> {
        let shard = |shard_index| shards.get(shard_index).map(Arc::downgrade).unwrap_or_default();
        Arc::new(Self { shards: std::array::from_fn(shard), shared })
    }

    /// Leases the shard_index's shard, and says how many other leases of the stream there are. Of two threads that lease at
    /// once at least one is told of the other. `None` where the stream was retired.
    #[inline]
    pub(crate) fn lease(&self, ShardIndex(shard_index): ShardIndex) -> Option<(Arc<StreamShard>, usize)> {
        let used = &self.shared.used;
        if used.load(Ordering::Relaxed) & (1 << shard_index) == 0 {
            used.fetch_or(1 << shard_index, Ordering::Relaxed);
        }
        let shard = self.shards[shard_index % SHARDS].upgrade()?;
        // Of two such exchanges one comes first, and its thread is seen by the other. On x86 the exchange itself sees to that.
        #[cfg(not(target_arch = "x86_64"))]
        std::sync::atomic::fence(Ordering::SeqCst);
        // The group's handle, and this one.
        let own = Arc::strong_count(&shard).saturating_sub(2);
        Some((shard, own + self.leases_in(!(1 << shard_index))))
    }

    /// As [`hold`](Self::hold), without a look at other threads' shards: leases the shard unless it is leased.
    #[inline]
    pub(crate) fn lease_if_unleased(&self, ShardIndex(shard_index): ShardIndex) -> Option<Arc<StreamShard>> {
        let shard = self.shards[shard_index % SHARDS].upgrade()?;
        (Arc::strong_count(&shard) == 2).then_some(shard)
    }

    /// How many leases there are.
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

/// A stream of a group, and its shards, which go with this unless they are leased.
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

    /// Gives up the shards, from when on nobody can lease them; `Err` with the stream as it was, with new shards for those given
    /// up, where one is leased.
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
