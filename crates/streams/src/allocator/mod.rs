//! Stream-ordered memory: freed memory is reused at once on its own stream, and on others after its work.
//!
//! Every method may be called from any thread. Each stream has its own free lists with their own lock, so threads
//! with separate streams do not contend. The driver is called only if a stream's own free blocks do not serve a
//! request.

mod allocate;
mod arena;
mod arenas;
mod block;
mod buffer;
mod builder;
mod cache;
pub(crate) mod destroy_hooks;
mod free;
mod release;
mod segments;
mod shard;
mod shared;
mod statistics;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use transload_core::{Fence, MemoryShortage, RawBuffer, Result};
use transload_memory::MemoryResource;

pub use arena::ReuseCounts;
pub use block::{BlockRef, FreeError, StreamBlock};
pub use builder::AllocatorBuilder;
pub use statistics::{AllocatorStatistics, SizeClassStatistics};

use self::{
    arena::{FreeWatermark, Ordered, size::AllocParams},
    shared::{Handle, Shared},
};
use crate::{CudaEvent, CudaStream};

/// Allocates stream-ordered blocks from large segments of an upstream resource. Clones share it.
///
/// A block freed on a stream serves that stream's next request at once: the next use is enqueued after the last one.
/// Another stream gets it when its work is known to be complete, or with a wait on the device. The event for that
/// wait is recorded only then.
///
/// Buffers of pinned and mapped memory are written by the host: they use memory without work in flight, within a
/// bound (see [`AllocatorBuilder::run_ahead_limit`]). So a loop that allocates a buffer, writes it, uploads it and
/// drops it can write the next buffer during the upload.
///
/// Sizes are rounded up to multiples of 512 bytes, and blocks are aligned to 512. Requests of up to 1 MiB are cut
/// from segments of 2 MiB, larger ones from segments of at least 20 MiB, or an eighth of the reserved memory if that
/// is more.
///
/// There are two interfaces to the same memory. [`allocate_for_stream`](Self::allocate_for_stream) returns plain
/// addresses for frameworks, which free them explicitly. [`allocate_buffer`](Self::allocate_buffer) returns owned
/// buffers, which track their uses by fences.
///
/// When a stream with work in flight is destroyed, an event is recorded at its end. Its live blocks can still be
/// freed, by [`free`](Self::free), and its free memory serves other streams after that event. If the stream is being
/// captured, it is destroyed, and the event recorded, after the capture.
///
/// While a stream is being captured into a graph, its own free blocks serve it, also within the capture, and its
/// blocks with recorded users stay pending until the capture ends. A captured graph uses its memory at every launch,
/// which no stream order shows: free such memory only after the graph is destroyed.
///
/// When memory is short, a request waits for streams that still use free memory, but not for other backends, whose
/// work this thread may have to finish.
///
/// When the last handle and the last buffer are dropped, every segment is released after the work of all streams,
/// even if blocks were not freed.
///
/// # Example
/// ```
/// # #[cfg(any(target_os = "linux", windows))] {
/// use std::sync::Arc;
///
/// use transload_core::MemoryKind;
/// use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
/// use transload_streams::{CudaStream, StreamOrderedAllocator};
///
/// fn reuse() -> transload_core::Result<()> {
///     let device = CudaDevice::new(0)?;
///     let memory = Arc::new(CudaMemoryManager::new(&device)?);
///     let allocator = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Device)?);
///     let stream = CudaStream::new(&device)?;
///     let block = allocator.allocate_for_stream(&stream, 4096)?;
///     // Enqueue work on `block.address()` here.
///     allocator.free_on(block, &stream)?;
///     let again = allocator.allocate_for_stream(&stream, 4096)?;
///     assert_eq!(again.address(), block.address());
///     allocator.free_on(again, &stream)
/// }
///
/// if let Err(error) = reuse() {
///     println!("no CUDA here: {error}");
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct StreamOrderedAllocator {
    shared: Arc<Shared>,
    _handle: Arc<Handle>,
}

/// Identifies a registered callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallbackId(u64);

impl StreamOrderedAllocator {
    /// Creates an allocator over a resource, without a limit of its own.
    #[must_use]
    pub fn new(upstream: impl MemoryResource) -> Self {
        Self::over(Box::new(upstream), builder::Options::default())
    }

    fn over(upstream: Box<dyn MemoryResource>, options: builder::Options) -> Self {
        let shared = Shared::new(upstream, options);
        Self { _handle: Handle::of(&shared), shared }
    }

    /// Returns a builder for a limit, other segment sizes, or other reuse rules.
    pub fn builder<R: MemoryResource>(upstream: R) -> AllocatorBuilder<R> {
        AllocatorBuilder::new(upstream)
    }

    /// Allocates a block for work that is enqueued on `stream` from now on. Its content is undefined. The host and
    /// other streams may use it only after the stream has reached this point.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes, a stream of another device, and a per-thread default stream; `OutOfMemory` with
    /// the numbers if memory is still short after releasing what is possible; the driver's.
    #[inline]
    pub fn allocate_for_stream(&self, stream: &CudaStream, bytes: usize) -> Result<StreamBlock> {
        let params = AllocParams::new(bytes, false)?.within(self.shared.options.max_split);
        let block = |arena, address, handle| {
            let (bytes, allocator) = (params.requested, self.shared.id);
            StreamBlock { address, bytes, allocator, handle, arena }
        };
        {
            let mut own = self.shared.arena_for(stream)?;
            if let Some((handle, address)) = own.state.take_block(params) {
                return Ok(block(own.index, address, handle));
            }
        }
        let taken = self.shared.allocate_slow(stream, params)?;
        Ok(block(taken.arena, taken.address, taken.handle))
    }

    /// Frees a block, ordered after all work enqueued so far on its stream and on its recorded users. `stream` is one
    /// of these. See [`free_for_stream`](Self::free_for_stream) for all blocks of a stream.
    ///
    /// # Errors
    /// `InvalidArgument` with a [`FreeError`] as its cause: already freed, never allocated, or the wrong stream.
    /// Nothing has changed then. The driver's, if the event for a recorded user failed; the block is still live then.
    #[inline]
    pub fn free_on(&self, block: impl Into<BlockRef>, stream: &CudaStream) -> Result<()> {
        self.shared.free_on(block.into(), stream)
    }

    /// Like [`free_on`](Self::free_on), if the block's stream was destroyed or is not at hand.
    ///
    /// # Errors
    /// As for `free_on`.
    pub fn free(&self, block: impl Into<BlockRef>) -> Result<()> {
        self.shared.free_slow(block.into(), None)
    }

    /// Frees all live blocks that were allocated on the stream, like [`free_on`](Self::free_on), and returns their
    /// number. Buffers stay. A block that another thread allocates meanwhile may stay too.
    ///
    /// # Errors
    /// The first error of the driver; the blocks whose free failed are still live, and all others are freed.
    pub fn free_for_stream(&self, stream: &CudaStream) -> Result<usize> {
        self.shared.free_all_of(stream)
    }

    /// Records `stream` as a user of the block: once freed, the block is reused only after the work enqueued there
    /// until then. The caller orders the stream's work after the block's own stream.
    ///
    /// # Errors
    /// As for [`free_on`](Self::free_on).
    pub fn record_use(&self, block: impl Into<BlockRef>, stream: &CudaStream) -> Result<()> {
        self.shared.record_use(block.into(), stream)
    }

    /// Allocates an owned buffer. Any stream may use it: operations wait for conflicting work in flight on its
    /// memory, which is not needed within one stream. When it is dropped, its memory can be reused at once, after the
    /// work in flight.
    ///
    /// # Errors
    /// As for [`allocate_for_stream`](Self::allocate_for_stream). `Busy` if the stream is being captured into a graph
    /// and the memory depends on its work that no event covers yet.
    pub fn allocate_buffer(&self, stream: &CudaStream, bytes: usize) -> Result<RawBuffer> {
        self.shared.buffer(stream, bytes)
    }

    /// Like [`allocate_buffer`](Self::allocate_buffer), but prefers memory without work in flight, or new memory,
    /// without the run-ahead limit: for callers that do not know which stream uses the buffer first. `stream` does no
    /// work of its own, since memory freed in its order is reused at once.
    ///
    /// Dropped buffers are kept for the next request of the same length on the same thread, up to 256 buffers or 256
    /// MiB per length; such a request takes no contended lock. They count as live until memory is short, or
    /// [`statistics`](Self::statistics), [`trim`](Self::trim) or [`drain`](Self::drain) frees them.
    ///
    /// # Errors
    /// As for `allocate_buffer`.
    pub fn allocate_idle_buffer(&self, stream: &CudaStream, bytes: usize) -> Result<RawBuffer> {
        self.shared.idle_buffer(stream, bytes)
    }

    /// Returns an idle buffer that the calling thread dropped before, if one of this length is kept; see
    /// [`allocate_idle_buffer`](Self::allocate_idle_buffer), which begins with this.
    #[inline]
    #[must_use]
    pub fn kept_buffer(&self, bytes: usize) -> Option<RawBuffer> {
        self.shared.kept_buffer(bytes)
    }

    /// Makes later work of `stream` wait for everything enqueued on `on` so far, on the device. Blocks freed on `on`
    /// until now are then reused on `stream` without another wait.
    ///
    /// # Errors
    /// The driver's; `InvalidArgument` for streams of another device; `Busy` while one of them is being captured into
    /// a graph.
    pub fn add_stream_dependency(&self, stream: &CudaStream, on: &CudaStream) -> Result<()> {
        drop(self.shared.arena_for(stream)?);
        let (other, generation, freed) = {
            let other = self.shared.arena_for(on)?;
            (other.arena, other.state.generation, other.state.freed)
        };
        if stream.id() == on.id() {
            return Ok(());
        }
        stream.own.check_not_captured()?;
        let _held = self.shared.track_transit();
        let fence = on.fence()?;
        stream.wait_fence(&fence)?;
        let point = fence.point();
        other.lock().note_watermark(generation, FreeWatermark { freed, point });
        // Fences are dropped without the lock.
        let mut dropped = Vec::new();
        let mut state = self.shared.arena_for(stream)?.state;
        state.note_order(Ordered { generation, freed, point });
        state.add_dependency(fence, &mut dropped);
        drop(state);
        Ok(())
    }

    /// Makes later work of `stream` wait for what `event` recorded last, on the device. Does nothing for an event that
    /// was never recorded. Unlike after [`add_stream_dependency`](Self::add_stream_dependency), blocks freed on the
    /// event's stream are reused on `stream` with a wait of their own.
    ///
    /// # Errors
    /// As for `add_stream_dependency`. `Busy` also for an event that was recorded into a capture: `stream` has then become part of
    /// that capture, as by [`CudaStream::wait_event`].
    pub fn add_event_dependency(&self, stream: &CudaStream, event: &CudaEvent) -> Result<()> {
        drop(self.shared.arena_for(stream)?);
        stream.own.check_not_captured()?;
        let _held = self.shared.track_transit();
        stream.wait_event(event)?;
        let point = stream.fence()?.point();
        let mut state = self.shared.arena_for(stream)?.state;
        state.waits_point = state.waits_point.max(point);
        Ok(())
    }

    /// Returns whether all dependencies of the stream are complete. Calls the driver. True for a stream without
    /// dependencies, also one that this allocator could not serve.
    #[must_use]
    pub fn dependencies_satisfied(&self, stream: &CudaStream) -> bool {
        let _held = self.shared.track_transit();
        let found = self.shared.find_arena(stream);
        let (mut fences, point) = found
            .map_or_else(Default::default, |own| (own.state.dependencies.clone(), own.state.waits_point));
        fences.push(Fence::new(Arc::clone(&stream.timeline), point));
        let over = fences.iter().all(Fence::is_complete);
        let mut dropped = Vec::new();
        if let Some(mut own) = self.shared.find_arena(stream) {
            dropped.extend(own.state.dependencies.extract_if(.., |fence| fence.is_known_complete()));
        }
        over
    }

    /// Clears the stream's recorded dependencies. Waits that are already enqueued stay.
    pub fn clear_dependencies(&self, stream: &CudaStream) {
        let _held = self.shared.track_transit();
        let _dropped = self.shared.find_arena(stream).map(|mut own| {
            own.state.ordered.clear();
            own.state.waits_point = 0;
            std::mem::take(&mut own.state.dependencies)
        });
    }

    /// Blocks until the stream's work is complete, drops its fences, and waits for other threads that are using the
    /// stream on behalf of this allocator. For a foreign stream that is about to be destroyed: afterwards, until its
    /// next use, only the caller's handles keep it in use, and buffers that other streams were allocated while its work was in flight: these may
    /// have its memory, behind its fence.
    ///
    /// A next use is one that names the stream: an allocation, a free, a recorded use. Work enqueued on it after the
    /// release is not seen before that, so a block that such work uses must not be freed without naming the stream.
    ///
    /// # Errors
    /// `Busy` while the stream is being captured; it was not released then. The driver's, also one that the stream's
    /// work caused; the stream was released nonetheless if that work is complete.
    pub fn release_stream(&self, stream: &CudaStream) -> Result<()> {
        self.shared.release(stream)
    }

    /// Releases segments that are entirely free and whose work is complete, then trims the upstream resource, which
    /// may wait for work in flight on memory released to it. Returns the bytes that the allocator released.
    ///
    /// # Errors
    /// The upstream resource's.
    pub fn trim(&self) -> Result<u64> {
        let bytes = self.shared.trim();
        self.shared.upstream.trim().map(|()| bytes)
    }

    /// Like [`trim`](Self::trim), but does not trim the upstream resource, and so never waits.
    pub fn release_cached(&self) -> u64 {
        self.shared.trim()
    }

    /// Waits for all work that free memory still waits for, then does what [`trim`](Self::trim) does. Memory used by
    /// a captured stream stays.
    ///
    /// # Errors
    /// The first error of failed work; all memory is released nonetheless. The upstream resource's.
    pub fn drain(&self) -> Result<()> {
        let outcome = self.shared.wait_for_all_work();
        outcome.and(self.trim().map(|_| ()))
    }

    /// Registers a callback for when memory is short and nothing is left to release. It may free blocks and drop
    /// buffers of this allocator, and returns whether the request should be retried. It runs without a lock.
    pub fn on_out_of_memory(
        &self,
        callback: impl Fn(&MemoryShortage) -> bool + Send + Sync + 'static,
    ) -> CallbackId {
        let id = self.shared.last_callback.fetch_add(1, Ordering::Relaxed) + 1;
        self.shared.callbacks.lock().push((id, Arc::new(callback)));
        CallbackId(id)
    }

    /// Removes a callback. A concurrent call of it may still be running when this returns.
    pub fn remove_callback(&self, id: CallbackId) {
        // User code: dropped without the lock.
        let _removed = {
            let mut callbacks = self.shared.callbacks.lock();
            callbacks.extract_if(.., |(of, _)| *of == id.0).collect::<Vec<_>>()
        };
    }

    /// Returns current statistics. Blocks all streams' allocations while collecting them.
    #[must_use]
    pub fn statistics(&self) -> AllocatorStatistics {
        statistics::of(&self.shared)
    }
}

impl fmt::Debug for StreamOrderedAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamOrderedAllocator")
            .field("place", &self.shared.upstream.place())
            .field("reserved", &self.shared.reserved)
            .finish_non_exhaustive()
    }
}
