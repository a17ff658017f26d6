//! What `Backend::allocate` gives warm: memory of buffers that are gone, without a call to the driver.
//!
//! An allocator for each kind, on a stream that does no work. So every use of a buffer is another stream's, and memory goes to
//! the next request only once all of them are over, as if it were new. Only where there is no more memory does a buffer begin
//! behind work that is in flight.

use std::sync::{Arc, OnceLock, Weak};

use transload_core::{DeviceId, ErrorKind, MemoryInfo, MemoryKind, Place, RawBuffer, ResourceCounts, Result};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource, MemoryResource};
use transload_streams::{CudaStream, StreamOrderedAllocator};

/// Up to here a request is served so. What is larger takes far longer to fill than to allocate.
const MAX_DEVICE_BYTES: usize = 256 << 20;
const MAX_PINNED_BYTES: usize = 64 << 20;

/// Device memory for requests up to here is not cut from larger segments, in which small buffers would keep each other's
/// neighbours. Pinned memory is dear to hold, so any of it serves.
const DEVICE_SPLIT: u64 = 16 << 20;

/// The device's other allocator, once it was asked for: what it only keeps goes back before a buffer here begins behind work.
pub(crate) type SiblingAllocator = Arc<OnceLock<StreamOrderedAllocator>>;

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemorySide {
    Device,
    Host,
    Both,
}

impl MemorySide {
    pub(crate) fn of(kind: MemoryKind) -> Self {
        match kind {
            MemoryKind::Device | MemoryKind::Unified => Self::Device,
            MemoryKind::Pinned | MemoryKind::Mapped | MemoryKind::Pageable => Self::Host,
        }
    }
}

/// The allocators of one device. In this order they go: the stream last.
#[derive(Default)]
pub(crate) struct BufferCache {
    device: OnceLock<StreamOrderedAllocator>,
    pinned: OnceLock<StreamOrderedAllocator>,
    stream: OnceLock<CudaStream>,
}

impl BufferCache {
    /// A buffer that the calling thread dropped before.
    #[inline]
    pub(crate) fn take_kept(&self, kind: MemoryKind, bytes: usize) -> Option<RawBuffer> {
        let slot = match kind {
            MemoryKind::Device => &self.device,
            MemoryKind::Pinned => &self.pinned,
            _ => return None,
        };
        slot.get()?.kept_buffer(bytes)
    }

    /// A buffer, where requests of this kind and size are served so.
    pub(crate) fn allocate(
        &self,
        (device, memory): (&CudaDevice, &Arc<CudaMemoryManager>),
        sibling: &SiblingAllocator,
        kind: MemoryKind,
        bytes: usize,
    ) -> Result<Option<RawBuffer>> {
        let (slot, most) = match kind {
            MemoryKind::Device => (&self.device, MAX_DEVICE_BYTES),
            MemoryKind::Pinned => (&self.pinned, MAX_PINNED_BYTES),
            _ => return Ok(None),
        };
        if bytes == 0 || bytes > most {
            return Ok(None);
        }
        let allocator = match slot.get() {
            Some(allocator) => allocator,
            None => {
                let sibling = Arc::downgrade(sibling);
                let upstream = CacheUpstream { resource: CudaResource::new(memory, kind)?, sibling };
                let split = if kind == MemoryKind::Device { DEVICE_SPLIT } else { u64::MAX };
                let builder = StreamOrderedAllocator::builder(upstream).exact_segments().max_split(split);
                let made = builder.build()?;
                slot.get_or_init(|| made)
            }
        };
        let stream = match self.stream.get() {
            Some(stream) => stream,
            None => {
                let made = CudaStream::new(device)?;
                self.stream.get_or_init(|| made)
            }
        };
        allocator.allocate_idle_buffer(stream, bytes).map(Some)
    }

    fn each(&self) -> impl Iterator<Item = &StreamOrderedAllocator> {
        [&self.device, &self.pinned].into_iter().filter_map(OnceLock::get)
    }

    /// Gives back what is kept without need, of what memory is short; answers how many bytes. Memory of the host makes no room
    /// on the device, and is dear to pin again.
    pub(crate) fn trim(&self, side: MemorySide) -> u64 {
        let (device, pinned) = (side != MemorySide::Host, side != MemorySide::Device);
        let device = self.device.get().filter(|_| device);
        let pinned = self.pinned.get().filter(|_| pinned);
        device.into_iter().chain(pinned).map(StreamOrderedAllocator::release_cached).sum()
    }

    /// Waits for what dropped buffers wait for, and gives everything back that is free.
    pub(crate) fn drain(&self) -> Result<()> {
        let mut outcome = Ok(());
        // Each is drained, also after an error.
        for allocator in self.each() {
            outcome = outcome.and(allocator.drain());
        }
        outcome
    }

    /// Puts buffers into the ledger in the place of the segments that they are cut from. A segment that is only kept counts too.
    pub(crate) fn add_to(&self, ledger: &mut ResourceCounts) {
        for allocator in self.each() {
            let now = allocator.statistics();
            let buffers = now.live_blocks + now.pending_free_blocks;
            let others = ledger.allocations.saturating_sub(now.segments);
            ledger.allocations = others + buffers + now.unused_segments;
            ledger.parked += now.pending_free_blocks;
        }
    }
}

/// A kind of the manager's memory. When memory is short the manager gives back by itself what does not have to be waited for;
/// what this thread may be the one to end must not be.
struct CacheUpstream {
    resource: CudaResource,
    sibling: Weak<OnceLock<StreamOrderedAllocator>>,
}

impl CacheUpstream {
    /// Has the other allocator give back what it keeps without need, without waiting. Answers whether there was anything.
    fn trim_sibling(&self) -> bool {
        // Which is of the device's memory alone.
        let sibling = self.resource.device().and_then(|_| self.sibling.upgrade());
        sibling.as_deref().and_then(OnceLock::get).is_some_and(|allocator| allocator.release_cached() > 0)
    }
}

// SAFETY: every answer is that of the wrapped resource.
unsafe impl MemoryResource for CacheUpstream {
    fn place(&self) -> Place {
        self.resource.place()
    }

    fn device(&self) -> Option<DeviceId> {
        self.resource.device()
    }

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        match self.resource.allocate_segment(bytes) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory && self.trim_sibling() => {
                self.resource.allocate_segment(bytes)
            }
            other => other,
        }
    }

    fn trim(&self) -> Result<()> {
        Ok(())
    }

    fn info(&self) -> Result<MemoryInfo> {
        self.resource.info()
    }
}
