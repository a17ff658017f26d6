//! Caches the memory of dropped buffers for `Backend::allocate`, which then makes no driver call.
//!
//! One allocator per kind, on an idle stream. All uses are on other streams, so memory is reused when they are
//! complete, or earlier if memory is short.

use std::sync::{Arc, OnceLock, Weak};

use transload_core::{
    DeviceId, ErrorKind, MemoryInfo, MemoryKind, Place, RawBuffer, ResourceCounts, Result, events::report,
};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource, MemoryResource, PinnedResource};
use transload_streams::{CudaStream, StreamOrderedAllocator};

/// Largest cached request, in bytes. Larger buffers take far longer to fill than to allocate.
const MAX_DEVICE_BYTES: usize = 256 << 20;
pub(crate) const MAX_PINNED_BYTES: usize = 64 << 20;

/// Largest device segment, in bytes, that is split. Splitting larger ones for small buffers would fragment them. Pinned
/// memory is scarce, so any segment is split.
const DEVICE_SPLIT: u64 = 16 << 20;

/// The device's public allocator, once created. Its cached memory is released before this cache reuses memory in
/// flight.
pub(crate) type SiblingAllocator = Arc<OnceLock<StreamOrderedAllocator>>;

/// Side whose memory is short.
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

/// The allocators of one device. Field order matters: the stream is dropped last.
#[derive(Default)]
pub(crate) struct BufferCache {
    device: OnceLock<StreamOrderedAllocator>,
    pinned: OnceLock<StreamOrderedAllocator>,
    stream: OnceLock<CudaStream>,
}

impl BufferCache {
    /// Returns a buffer that the calling thread dropped before, if any fits.
    #[inline]
    pub(crate) fn take_kept(&self, kind: MemoryKind, bytes: usize) -> Option<RawBuffer> {
        let slot = match kind {
            MemoryKind::Device => &self.device,
            MemoryKind::Pinned => &self.pinned,
            _ => return None,
        };
        slot.get()?.kept_buffer(bytes)
    }

    /// Allocates a buffer; `None` if requests of this kind and size are not cached.
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
                // Pinned memory on huge pages is registered in half of the time that the driver takes to allocate it.
                let resource: Box<dyn MemoryResource> = match kind {
                    MemoryKind::Pinned => Box::new(PinnedResource::new(memory)),
                    _ => Box::new(CudaResource::new(memory, kind)?),
                };
                let upstream = CacheUpstream { resource, sibling };
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

    /// Releases cached memory of a side. Returns the bytes released. Releasing host memory makes no room on the device,
    /// and pinning it again is slow.
    pub(crate) fn trim(&self, side: MemorySide) -> u64 {
        let (device, pinned) = (side != MemorySide::Host, side != MemorySide::Device);
        let device = self.device.get().filter(|_| device);
        let pinned = self.pinned.get().filter(|_| pinned);
        device.into_iter().chain(pinned).map(StreamOrderedAllocator::release_cached).sum()
    }

    /// Returns the bytes of pinned memory that no buffer uses.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pinned.get().map_or(0, |allocator| allocator.statistics().free)
    }

    /// Waits for pending frees, and releases all free memory.
    pub(crate) fn drain(&self) -> Result<()> {
        let mut outcome = Ok(());
        // Drain each, even after an error.
        for allocator in self.each() {
            outcome = outcome.and(allocator.drain());
        }
        outcome
    }

    /// Counts live buffers instead of the segments they are in, and cached segments.
    pub(crate) fn add_to(&self, ledger: &mut ResourceCounts) {
        for allocator in self.each() {
            let now = allocator.statistics();
            let buffers = now.live_blocks + now.pending_free_blocks;
            let others = ledger.allocations.saturating_sub(now.segments);
            ledger.allocations = others + buffers + now.unused_segments;
            ledger.pending_free += now.pending_free_blocks;
            ledger.cached_bytes += now.free;
        }
    }
}

/// The manager's memory of one kind. If memory is short, the manager releases what needs no waiting; waiting could
/// deadlock on work that this thread must finish.
struct CacheUpstream {
    resource: Box<dyn MemoryResource>,
    sibling: Weak<OnceLock<StreamOrderedAllocator>>,
}

impl CacheUpstream {
    /// Has the sibling allocator release cached memory, without waiting. Returns whether it released any.
    fn trim_sibling(&self) -> bool {
        // The sibling caches device memory only.
        let sibling = self.resource.device().and_then(|_| self.sibling.upgrade());
        sibling.as_deref().and_then(OnceLock::get).is_some_and(|allocator| allocator.release_cached() > 0)
    }
}

// SAFETY: every call is forwarded to the wrapped resource.
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
                self.resource.allocate_segment(bytes).inspect(|_| {
                    report::allocation_retried(
                        self.place(),
                        bytes as u64,
                        "another allocator's memory was released",
                    );
                })
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
