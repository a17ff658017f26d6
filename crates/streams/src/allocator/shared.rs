//! State shared by the handles and buffers of one allocator.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use transload_core::{
    Error, ErrorKind, Fence, MemoryKind, MemoryShortage, Reclaimer, Result, SpareBuffer, Timeline,
    events::report,
};
use transload_memory::MemoryResource;

use super::{
    arena::{
        self, FreeWatermark,
        blocks::{Blocks, Holder, Node},
        size::AllocParams,
    },
    arenas::{Arena, ArenaState, Arenas, ResolvedOwner, recent, remember, resolve_owner, serves},
    builder::Options,
    cache,
    segments::Segments,
    shard::Shard,
};
use crate::{CudaStream, completion::after_capture::AfterCapture, sync::MutexGuard};

/// Called when memory is short; returns whether it freed anything.
pub(super) type Callback = dyn Fn(&MemoryShortage) -> bool + Send + Sync;

pub(super) struct Shared {
    /// Unique in the process.
    pub(super) id: u64,
    pub(super) upstream: Box<dyn MemoryResource>,
    pub(super) options: Options,
    /// For host memory, the bytes of a stream that may be in flight while requests get other memory; else 0.
    pub(super) run_ahead_limit: u64,
    pub(super) arenas: Arc<Arenas>,
    /// Locked after any arena.
    pub(super) segments: Mutex<Segments>,
    pub(super) reserved: AtomicU64,
    pub(super) peak_reserved: AtomicU64,
    pub(super) callbacks: Mutex<Vec<(u64, Arc<Callback>)>>,
    pub(super) last_callback: AtomicU64,
    /// Dropped idle buffers, cached per thread.
    pub(super) shards: Box<[Shard<SpareBuffer>]>,
    /// Read-locked while a thread has memory, fences or stream handles in transit, invisible in any arena. A thread
    /// that is short of memory, or releases a stream, waits for it. No device wait happens under it.
    in_transit: RwLock<()>,
    /// Read-locked while a thread holds stream handles and waits for streams. A thread that releases a stream waits
    /// for it.
    stream_handles: RwLock<()>,
    /// Never holds anything: the allocator adopts every fence.
    pub(super) reclaimer: Arc<Reclaimer>,
}

thread_local! {
    /// Number of [`TransitGuard`]s of this thread, of all allocators.
    static GUARDS: Cell<u32> = const { Cell::new(0) };
}

/// While it exists, its thread has memory, fences or handles in transit.
pub(super) struct TransitGuard<'a> {
    _guard: RwLockReadGuard<'a, ()>,
}

impl<'a> TransitGuard<'a> {
    fn new(lock: &'a RwLock<()>) -> Self {
        GUARDS.set(GUARDS.get() + 1);
        Self { _guard: lock.read_recursive() }
    }
}

impl Drop for TransitGuard<'_> {
    fn drop(&mut self) {
        GUARDS.set(GUARDS.get() - 1);
    }
}

/// The locked arena that serves a stream.
pub(super) struct LockedArena<'a> {
    pub(super) index: u32,
    pub(super) arena: &'a Arena,
    pub(super) state: MutexGuard<'a, ArenaState>,
}

/// An allocated block, not yet returned to the caller.
pub(super) struct AllocatedBlock {
    pub(super) arena: u32,
    pub(super) handle: arena::Handle,
    pub(super) address: u64,
    pub(super) segment: u32,
    /// Fences that its users must wait for, beyond the stream's own order.
    pub(super) behind: Vec<Fence>,
}

impl Shared {
    pub(super) fn new(upstream: Box<dyn MemoryResource>, options: Options) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let is_host = matches!(upstream.place().kind, MemoryKind::Pinned | MemoryKind::Mapped);
        let run_ahead_limit = if is_host { options.run_ahead_limit } else { 0 };
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            upstream,
            options,
            run_ahead_limit,
            arenas: Arc::new(Arenas::new()),
            segments: Mutex::default(),
            reserved: AtomicU64::new(0),
            peak_reserved: AtomicU64::new(0),
            callbacks: Mutex::default(),
            last_callback: AtomicU64::new(0),
            shards: cache::shards(),
            in_transit: RwLock::default(),
            stream_handles: RwLock::default(),
            reclaimer: Arc::new(Reclaimer::new()),
        })
    }

    /// Marks memory or fences as in transit. A thread may hold several guards.
    pub(super) fn track_transit(&self) -> TransitGuard<'_> {
        TransitGuard::new(&self.in_transit)
    }

    /// Marks stream handles as held, possibly during waits.
    pub(super) fn track_handles(&self) -> TransitGuard<'_> {
        TransitGuard::new(&self.stream_handles)
    }

    /// Waits until no thread has memory in transit; new guards may prolong the wait. Returns at once if this thread
    /// has a guard itself, as in a callback of an upstream resource or a fence.
    pub(super) fn wait_for_transit(&self) {
        if GUARDS.get() == 0 {
            drop(self.in_transit.write());
        }
    }

    /// Like [`wait_for_transit`](Self::wait_for_transit), but also waits for stream handles.
    pub(super) fn wait_for_transit_and_handles(&self) {
        if GUARDS.get() == 0 {
            // One after the other: a holder of stream handles may take a transit guard.
            drop(self.in_transit.write());
            drop(self.stream_handles.write());
        }
    }

    /// Locks the arena that serves a stream, creating it if needed. No other arena may be locked.
    #[inline]
    pub(super) fn arena_for(&self, stream: &CudaStream) -> Result<LockedArena<'_>> {
        if let Some(index) = recent(self.id, stream)
            && let Some(arena) = self.arenas.get(index)
        {
            let state = arena.lock();
            if serves(&state, stream) {
                return Ok(LockedArena { index, arena, state });
            }
        }
        self.arena_for_slow(stream)
    }

    /// Like [`arena_for`](Self::arena_for), but `None` for a stream not used here since its release.
    pub(super) fn find_arena(&self, stream: &CudaStream) -> Option<LockedArena<'_>> {
        let (index, arena) = self.arenas.find(stream.id())?;
        let state = arena.lock();
        serves(&state, stream).then_some(LockedArena { index, arena, state })
    }

    #[cold]
    fn arena_for_slow(&self, stream: &CudaStream) -> Result<LockedArena<'_>> {
        if let Some(device) = self.upstream.device().filter(|device| *device != stream.device()) {
            let text = format!(
                "a stream of {} cannot order memory of {device}; valid are streams of {device}",
                stream.device()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        // Other threads cannot record an event on it.
        if stream.own.is_per_thread() {
            let text = "memory in the order of a per-thread default stream could be reused by its thread only; valid are \
                        streams that every thread can name, also foreign ones and the legacy default stream";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let id = stream.id();
        loop {
            if self.arenas.find(id).is_none() {
                self.arenas
                    .directory
                    .lock()
                    .enter(&self.arenas, stream, self.run_ahead_limit > 0)
                    .ok_or_else(too_many)?;
                // After that, since other allocators' calls remove hooks of unregistered streams. The stream cannot
                // end before: the caller has a handle.
                stream.own.destroy_hooks.add(id, Arc::clone(&self.arenas));
            }
            // None if it was released meanwhile.
            let Some((index, arena)) = self.arenas.find(id) else { continue };
            let state = arena.lock();
            if serves(&state, stream) {
                remember(self.id, stream, index);
                return Ok(LockedArena { index, arena, state });
            }
        }
    }

    /// Allocates from the stream's own free blocks, if one fits.
    pub(super) fn take_own(
        &self,
        stream: &CudaStream,
        params: AllocParams,
    ) -> Result<Option<AllocatedBlock>> {
        let mut own = self.arena_for(stream)?;
        let node = own.state.take_own(params);
        node.map(|node| self.finish_allocation(stream, own, node, Vec::new())).transpose()
    }

    /// Completes the allocation of a live node of the stream's arena. On failure the block is free again.
    pub(super) fn finish_allocation(
        &self,
        stream: &CudaStream,
        own: LockedArena<'_>,
        node: u32,
        mut behind: Vec<Fence>,
    ) -> Result<AllocatedBlock> {
        let LockedArena { index, arena, state } = own;
        let (block, mut watermark, generation) =
            (state.blocks.node(node).clone(), state.watermark, state.generation);
        drop(state);
        // Another stream may use a buffer first, so this stream's remaining work needs a fence.
        if block.holder == Holder::Buffer {
            let order = block.order;
            if order.freed > watermark.freed {
                watermark = match self.record_watermark(arena, generation, stream) {
                    Ok(watermark) => watermark.unwrap_or_default(),
                    Err(error) => {
                        // The block must still wait for the fences of other streams.
                        arena.lock().free_after(node, order, behind);
                        return Err(error);
                    }
                };
            }
            let point = if order.freed > 0 { watermark.point.max(order.point) } else { order.point };
            if point > stream.own.reached() {
                behind.push(Fence::new(Arc::clone(&stream.timeline), point));
            }
        }
        let Node { address, segment, serial, .. } = block;
        Ok(AllocatedBlock { arena: index, handle: arena::Handle { node, serial }, address, segment, behind })
    }

    /// Returns a point that covers all frees on the stream so far.
    pub(super) fn record_watermark(
        &self,
        arena: &Arena,
        generation: u64,
        stream: &CudaStream,
    ) -> Result<Option<FreeWatermark>> {
        arena.record_watermark(generation, || stream.fence().map(|fence| fence.point()))
    }
}

fn too_many() -> Error {
    Error::new(ErrorKind::Unsupported, "more streams than an allocator can serve at a time")
}

/// Shared by the handles of an allocator. The last one to drop closes the caches.
pub(super) struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    pub(super) fn of(shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new(Self { shared: Arc::clone(shared) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close_caches();
    }
}

impl Drop for Shared {
    /// Never waits for the device: segments in use are kept until the fences of every stream are complete.
    fn drop(&mut self) {
        let segments = self.segments.lock().take_all();
        let mut fences = Vec::new();
        for (_, arena) in self.arenas.iter() {
            let owner = resolve_owner(arena).1;
            let mut state = arena.lock();
            fences.extend(state.deferred.drain(..).flat_map(|waiting| waiting.until));
            // The arenas outlive this, until their streams end: free their memory and keep no stream alive.
            let dependencies = std::mem::take(&mut state.dependencies);
            state.users.clear();
            let (last, used) =
                (state.last_point, state.freed > 0 || state.blocks.counts.live > 0 || state.recorded > 0);
            state.blocks = Blocks::new();
            state.in_flight.clear();
            drop(state);
            drop(dependencies);
            let stream = match owner {
                ResolvedOwner::Vacant => continue,
                ResolvedOwner::Ended(end) => {
                    fences.push(end);
                    continue;
                }
                ResolvedOwner::Stream(stream) => stream,
            };
            if used && !segments.is_empty() {
                match stream.fence() {
                    Ok(fence) => fences.push(fence),
                    // Without a fence, wait; a lost device does no work any more.
                    Err(error) if error.kind() == ErrorKind::DeviceLost => {}
                    Err(error) if error.kind() == ErrorKind::Busy => fences.push(AfterCapture::of(stream)),
                    Err(error) => {
                        report::call_failed(
                            "waiting for a stream instead of a fence",
                            stream.device(),
                            &error,
                        );
                        // After another error its work is over, too.
                        drop(stream.synchronize_under_guard());
                    }
                }
            } else if last > 0 {
                fences.push(Fence::new(Arc::clone(&stream.timeline), last));
            }
        }
        self.arenas.directory.lock().close();
        fences.retain(|fence| !fence.is_known_complete());
        for segment in &segments {
            for fence in &fences {
                segment.keep_until(fence);
            }
        }
    }
}
