//! Memory in the order of streams: freed memory is used again at once in its own stream, and wrong_thread behind its work.
//!
//! Every method may be called from any thread. Threads that use streams of their own do not disturb each other: each stream
//! has its own blocks behind its own lock. While a stream's own blocks serve its requests, the driver is not called.

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
    arena::{Ordered, size::AllocParams},
    shared::{Handle, Shared},
};
use crate::CudaStream;

/// Allocates blocks in the order of streams, cut from large segments of an upstream resource. Clones share it.
///
/// A block freed on a stream is given to that stream's next request at once: what uses it next is enqueued behind what used
/// it last. To another stream it is given when the work is known to be over, or behind a wait on the device; the event for
/// that is recorded only then.
///
/// Buffers of pinned and mapped memory are for the host to write: they are cut from memory that nothing in flight uses, within a
/// bound (see [`AllocatorBuilder::ahead`]). So a loop that takes a buffer, writes it, uploads it and lets go of it writes the
/// next one while the last one is uploaded.
///
/// Sizes are rounded up to multiples of 512 bytes, and every block begins at one. Requests of up to 1 MiB are cut from
/// segments of 2 MiB, larger ones from segments of at least 20 MiB, an eighth of what is held already where that is more.
///
/// Two layers share the same memory. [`allocate_for_stream`](Self::allocate_for_stream) gives plain addresses to frameworks,
/// which free them by hand. [`allocate_buffer`](Self::allocate_buffer) gives owned buffers, resolve_owner fences say by themselves
/// which streams use them.
///
/// When a stream is destroyed that is not idle, an event is recorded at its end: its blocks can still be freed, by
/// [`free`](Self::free), and its free memory serves other streams behind that event.
/// Where someone captures it at that moment, the event is recorded once the capture is over, and the stream destroyed then.
///
/// A stream that someone captures into a graph is left alone: its own free blocks serve it, also from within the capture, and
/// blocks freed meanwhile that it was recorded as a user of are parked until the capture ends. Memory that a captured graph
/// uses is the graph's at every launch, which no stream's order shows: free it only when the graph is gone.
///
/// When memory is short, a request waits for the work of streams that free memory is behind; what another backend still does
/// to free memory is not waited for, since this very thread may be what ends it.
///
/// When the last handle and the last buffer are gone, every segment goes back behind the work of all streams, whether all
/// blocks were freed or not.
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
///     allocator.free_for_stream(block, &stream)?;
///     let again = allocator.allocate_for_stream(&stream, 4096)?;
///     assert_eq!(again.address(), block.address());
///     allocator.free_for_stream(again, &stream)
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

/// Names a callback, to remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallbackId(u64);

impl StreamOrderedAllocator {
    /// An allocator over a resource, without a limit of its own.
    #[must_use]
    pub fn new(upstream: impl MemoryResource) -> Self {
        Self::over(Box::new(upstream), builder::Options::default())
    }

    fn over(upstream: Box<dyn MemoryResource>, options: builder::Options) -> Self {
        let shared = Shared::new(upstream, options);
        Self { _handle: Handle::of(&shared), shared }
    }

    /// An allocator with a limit, other sizes of segments, or another rule for reuse.
    pub fn builder<R: MemoryResource>(upstream: R) -> AllocatorBuilder<R> {
        AllocatorBuilder::new(upstream)
    }

    /// A block for work that is enqueued on `stream` from now on. Its content is undefined, and it may not be used by the
    /// host or other streams before the stream has come so far.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes, for a stream of another device, and for a per-thread default stream; `OutOfMemory` with the numbers after everything that
    /// could be given back was; the driver's.
    #[inline]
    pub fn allocate_for_stream(&self, stream: &CudaStream, bytes: usize) -> Result<StreamBlock> {
        let want = AllocParams::new(bytes, false)?.within(self.shared.options.max_split);
        let block = |arena, address, handle| {
            let (bytes, allocator) = (want.requested, self.shared.id);
            StreamBlock { address, bytes, allocator, handle, arena }
        };
        {
            let mut own = self.shared.arena_for(stream)?;
            if let Some((handle, address)) = own.state.take_block(want) {
                return Ok(block(own.index, address, handle));
            }
        }
        let taken = self.shared.allocate_slow(stream, want)?;
        Ok(block(taken.arena, taken.address, taken.handle))
    }

    /// Gives a block back, behind what is enqueued so far on the stream on which it was allocated and on all streams that
    /// were recorded as its users. `stream` is one of them.
    ///
    /// # Errors
    /// `InvalidArgument` with a [`FreeError`] as its cause: freed already, never allocated, or the wrong stream. Nothing has
    /// changed then. The driver's, where an event for a recorded user cannot be had; the block is still live then.
    #[inline]
    pub fn free_for_stream(&self, block: impl Into<BlockRef>, stream: &CudaStream) -> Result<()> {
        self.shared.free_on(block.into(), stream)
    }

    /// As [`free_for_stream`](Self::free_for_stream), where the stream of the block is gone or not at hand.
    ///
    /// # Errors
    /// As for `free_for_stream`.
    pub fn free(&self, block: impl Into<BlockRef>) -> Result<()> {
        self.shared.free_slow(block.into(), None)
    }

    /// Says that `stream` uses the block too: once it is freed, it is used again only behind what is enqueued there by then.
    /// That the stream's work comes after the block's own stream is the caller's to see to.
    ///
    /// # Errors
    /// As for [`free_for_stream`](Self::free_for_stream).
    pub fn record_use(&self, block: impl Into<BlockRef>, stream: &CudaStream) -> Result<()> {
        self.shared.record_use(block.into(), stream)
    }

    /// An owned buffer over a block. Any stream may use it: operations wait by themselves for what is in flight on the memory,
    /// which within one stream means not at all. Dropped, its memory can be used again at once, behind what is in flight.
    ///
    /// # Errors
    /// As for [`allocate_for_stream`](Self::allocate_for_stream). `Busy` where someone captures the stream into a graph and
    /// the memory at hand is behind work of it that no event covers yet.
    pub fn allocate_buffer(&self, stream: &CudaStream, bytes: usize) -> Result<RawBuffer> {
        self.shared.buffer(stream, bytes)
    }

    /// As [`allocate_buffer`](Self::allocate_buffer), of memory that nothing in flight uses, as long as there is any or more
    /// can be had, however much is in flight: for whoever does not know which stream uses the buffer first. `stream` is one
    /// that does no work of its own, since what is freed in its order is used again at once.
    ///
    /// Dropped buffers are kept for the next request of the same length by the same thread, at most 256 of a length or 256 MiB
    /// of them: such a request takes no lock that another thread takes. They count as live until memory is short, or
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

    /// Work of `stream` from now on comes after everything enqueued on `on` so far, by a wait on the device. Blocks freed on
    /// `on` until now are then used on `stream` with no further wait.
    ///
    /// # Errors
    /// The driver's; `InvalidArgument` for streams of another device; `Busy` while someone captures one of them into a graph.
    pub fn add_stream_dependency(&self, stream: &CudaStream, on: &CudaStream) -> Result<()> {
        let own = self.shared.arena_for(stream)?.index;
        let (other, generation, freed) = {
            let other = self.shared.arena_for(on)?;
            if other.index == own {
                return Ok(());
            }
            (other.arena, other.state.generation, other.state.freed)
        };
        let _held = self.shared.track_transit();
        let fence = on.fence()?;
        stream.wait_fence(&fence)?;
        let point = fence.point();
        {
            let mut state = other.lock();
            if state.generation == generation && state.watermark.freed < freed {
                state.watermark = arena::FreeWatermark { freed, point };
            }
        }
        let implies = |one: &Fence, other: &Fence| {
            one.timeline().id() == other.timeline().id() && one.point() >= other.point()
        };
        // What need not be kept is dropped with the lock open.
        let mut dropped = Vec::new();
        let mut state = self.shared.arena_for(stream)?.state;
        state.note_order(Ordered { generation, freed, point });
        dropped.extend(state.dependencies.extract_if(.., |known| known.is_known_complete()));
        state.depend(fence, implies, &mut dropped);
        drop(state);
        Ok(())
    }

    /// Whether everything that the stream was told to come after is over; asks the driver. True for a stream that was told
    /// nothing, also where this allocator could not serve it.
    #[must_use]
    pub fn dependencies_satisfied(&self, stream: &CudaStream) -> bool {
        let _held = self.shared.track_transit();
        let fences =
            self.shared.find_arena(stream).map_or_else(Vec::new, |own| own.state.dependencies.clone());
        let over = fences.iter().all(Fence::is_complete);
        let mut dropped = Vec::new();
        if let Some(mut own) = self.shared.find_arena(stream) {
            dropped.extend(own.state.dependencies.extract_if(.., |fence| fence.is_known_complete()));
        }
        over
    }

    /// Forgets what the stream was told to come after. Waits that are enqueued already stay.
    pub fn clear_dependencies(&self, stream: &CudaStream) {
        let _held = self.shared.track_transit();
        let _dropped = self.shared.find_arena(stream).map(|mut own| {
            own.state.ordered.clear();
            std::mem::take(&mut own.state.dependencies)
        });
    }

    /// Blocks until the stream's work is done, lets go of its fences, and waits for other threads that are just looking after
    /// it. For a foreign stream that is about to be destroyed: from here on, and until it is used again, only the caller's own
    /// handles keep it in use.
    ///
    /// Used again is what names it here: an allocation, a free, a recorded use. Work that was enqueued on it after the release
    /// is not seen before that, so a block that such work uses must not be freed without naming the stream.
    ///
    /// # Errors
    /// `Busy` while someone captures the stream into a graph: it was not released then. The driver's, also one that the
    /// stream's work caused; it was released all the same where that work is over.
    pub fn release_stream(&self, stream: &CudaStream) -> Result<()> {
        self.shared.release(stream)
    }

    /// Gives segments back that are wholly free and resolve_owner work is over. Has the upstream resource trim itself too, which may
    /// wait for work in flight on memory that was given back to it. Answers how many bytes the allocator gave back.
    ///
    /// # Errors
    /// The upstream resource's.
    pub fn trim(&self) -> Result<u64> {
        let bytes = self.shared.trim();
        self.shared.upstream.trim().map(|()| bytes)
    }

    /// As [`trim`](Self::trim), but leaves the upstream resource alone, and so waits for nothing.
    pub fn release_cached(&self) -> u64 {
        self.shared.trim()
    }

    /// Waits for everything that free memory is behind, then gives back what [`trim`](Self::trim) does. Memory behind someone's
    /// capture stays.
    ///
    /// # Errors
    /// The first error of work that failed; all memory is given back all the same. The upstream resource's.
    pub fn drain(&self) -> Result<()> {
        let outcome = self.shared.wait_for_all_work();
        outcome.and(self.trim().map(|_| ()))
    }

    /// Registers what is asked when memory is short and nothing is left to give back. It may free blocks and drop buffers of
    /// this allocator, and answers whether the request is worth another try. No lock is held while it runs.
    pub fn on_out_of_memory(
        &self,
        callback: impl Fn(&MemoryShortage) -> bool + Send + Sync + 'static,
    ) -> CallbackId {
        let id = self.shared.last_callback.fetch_add(1, Ordering::Relaxed) + 1;
        self.shared.callbacks.lock().push((id, Arc::new(callback)));
        CallbackId(id)
    }

    /// Removes a callback. One that runs at the moment ends first only for its own caller.
    pub fn remove_callback(&self, id: CallbackId) {
        // Dropped with the list unlocked: it is the user's.
        let _removed = {
            let mut callbacks = self.shared.callbacks.lock();
            callbacks.extract_if(.., |(of, _)| *of == id.0).collect::<Vec<_>>()
        };
    }

    /// The numbers of this moment. Stops every stream's allocations for as long as they are collected.
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
