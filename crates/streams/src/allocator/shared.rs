//! What the handles of one allocator, and the buffers that it gave, have in common.

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

/// Asked where memory is short; answers whether it freed anything.
pub(super) type Callback = dyn Fn(&MemoryShortage) -> bool + Send + Sync;

pub(super) struct Shared {
    /// Another number for each allocator of the process.
    pub(super) id: u64,
    pub(super) upstream: Box<dyn MemoryResource>,
    pub(super) options: Options,
    /// Of host memory, how many bytes of a stream may be in flight beside a request that gets others.
    pub(super) ahead: u64,
    pub(super) arenas: Arc<Arenas>,
    /// Locked after any arena.
    pub(super) segments: Mutex<Segments>,
    pub(super) reserved: AtomicU64,
    pub(super) peak_reserved: AtomicU64,
    pub(super) callbacks: Mutex<Vec<(u64, Arc<Callback>)>>,
    pub(super) last_callback: AtomicU64,
    /// What each thread keeps of dropped idle buffers.
    pub(super) shards: Box<[Shard<SpareBuffer>]>,
    /// Read-locked while a thread has memory, fences or stream handles in hand that no arena shows: a thread that is short of
    /// memory, or releases a stream, lets it put them down first. Nobody waits for a device meanwhile.
    in_transit: RwLock<()>,
    /// Read-locked while a thread waits for streams, of which it has handles: a thread that releases a stream waits for it.
    stream_handles: RwLock<()>,
    /// Never holds anything: the allocator takes every fence over.
    pub(super) reclaimer: Arc<Reclaimer>,
}

thread_local! {
    /// How many of [`TransitGuard`] this thread has, of any allocator.
    static GUARDS: Cell<u32> = const { Cell::new(0) };
}

/// While it generations, a thread has something in hand.
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

/// The arena that serves a stream.
pub(super) struct LockedArena<'a> {
    pub(super) index: u32,
    pub(super) arena: &'a Arena,
    pub(super) state: MutexGuard<'a, ArenaState>,
}

/// A live block on its way to the caller.
pub(super) struct AllocatedBlock {
    pub(super) arena: u32,
    pub(super) handle: arena::Handle,
    pub(super) address: u64,
    pub(super) segment: u32,
    /// What its users must come after, where that is not the stream's own order.
    pub(super) behind: Vec<Fence>,
}

impl Shared {
    pub(super) fn new(upstream: Box<dyn MemoryResource>, options: Options) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let is_host = matches!(upstream.place().kind, MemoryKind::Pinned | MemoryKind::Mapped);
        let ahead = if is_host { options.ahead } else { 0 };
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            upstream,
            options,
            ahead,
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

    /// For as long as this thread has something in hand; a thread may hold several of these.
    pub(super) fn track_transit(&self) -> TransitGuard<'_> {
        TransitGuard::new(&self.in_transit)
    }

    /// For as long as this thread has handles of streams, and perhaps waits for them.
    pub(super) fn track_handles(&self) -> TransitGuard<'_> {
        TransitGuard::new(&self.stream_handles)
    }

    /// Waits until no thread has memory in hand, which new ones may prolong. A thread that has something in hand itself, as
    /// where an upstream resource or a fence calls back, does not wait.
    pub(super) fn wait_for_transit(&self) {
        if GUARDS.get() == 0 {
            drop(self.in_transit.write());
        }
    }

    /// Like [`wait_for_transit`](Self::wait_for_transit), also for handles of streams.
    pub(super) fn wait_for_transit_and_handles(&self) {
        if GUARDS.get() == 0 {
            // One after the other: who visits may take something in hand before it is done.
            drop(self.in_transit.write());
            drop(self.stream_handles.write());
        }
    }

    /// The arena that serves a stream, locked. No other arena may be locked.
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

    /// Like [`arena_for`](Self::arena_for), but `None` for a stream that was not used here since it was released.
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
        // Other threads could neither record an event on it, nor at its end.
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
                    .enter(&self.arenas, stream, self.ahead > 0)
                    .ok_or_else(too_many)?;
                // Behind that, since other allocators throw out who does not know the stream. It cannot end before: the caller
                // has a handle.
                stream.own.destroy_hooks.add(id, Arc::clone(&self.arenas));
            }
            // Released meanwhile, where there is none.
            let Some((index, arena)) = self.arenas.find(id) else { continue };
            let state = arena.lock();
            if serves(&state, stream) {
                remember(self.id, stream, index);
                return Ok(LockedArena { index, arena, state });
            }
        }
    }

    /// A live block with what its users must come after, if there is one in the stream.
    pub(super) fn take_own(&self, stream: &CudaStream, want: AllocParams) -> Result<Option<AllocatedBlock>> {
        let mut own = self.arena_for(stream)?;
        let node = own.state.take_own(want);
        node.map(|node| self.finish_allocation(stream, own, node, Vec::new())).transpose()
    }

    /// Makes a live node of a stream's own arena ready for the caller. Where it fails, the block is free again.
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
        // Another stream may be the first to use a buffer, so what this one still does to it must be a fence.
        if block.holder == Holder::Buffer {
            let order = block.order;
            if order.freed > watermark.freed {
                watermark = match self.record_watermark(arena, generation, stream) {
                    Ok(watermark) => watermark.unwrap_or_default(),
                    Err(error) => {
                        // What it came behind from other streams it comes behind still.
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

    /// A point behind everything freed on the stream so far.
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

/// What the handles of an allocator share: with the last of them nothing is kept for later any more.
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
    /// Never waits for the device: segments that are in use are parked where they came from, behind a fence of every stream.
    fn drop(&mut self) {
        let segments = self.segments.lock().take_all();
        let mut fences = Vec::new();
        for (_, arena) in self.arenas.iter() {
            let owner = resolve_owner(arena).1;
            let mut state = arena.lock();
            fences.extend(state.deferred.drain(..).flat_map(|waiting| waiting.until));
            // What streams keep of this allocator until they end shall be little, and keep none of them alive.
            let dependencies = std::mem::take(&mut state.dependencies);
            state.users.clear();
            let (last, used) =
                (state.last_point, state.freed > 0 || state.blocks.counts.live > 0 || state.is_user);
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
                    // Without a fence it has to be waited for; a lost device does nothing any more.
                    Err(error) if error.kind() == ErrorKind::DeviceLost => {}
                    Err(error) if error.kind() == ErrorKind::Busy => fences.push(AfterCapture::of(stream)),
                    Err(_) => drop(stream.synchronize()),
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
