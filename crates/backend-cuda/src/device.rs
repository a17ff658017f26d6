//! State of one device: memory and streams, created on first use.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use transload_core::{
    DeviceId, DeviceInfo, ErrorKind, MemoryKind, Place, RawBuffer, ResourceCounts, Result, events::report,
    mutant,
};
use transload_cuda_sys::Driver;
use transload_memory::{
    CudaDevice, CudaFeature, CudaMemoryManager, CudaResource, MemoryResource, PinnedLimit, PinnedResource,
    RegistrationCache, lift,
};
use transload_streams::{AdvancedStreamPool, CudaStream, StreamOrderedAllocator};

use crate::{
    CudaBackendConfig,
    buffer_cache::{BufferCache, MemorySide, SiblingAllocator},
    event_streams::EventStreams,
};

pub(crate) struct DeviceState {
    pub(crate) id: DeviceId,
    pub(crate) device: CudaDevice,
    info: DeviceInfo,
    memory: OnceLock<Arc<CudaMemoryManager>>,
    /// Serves [`allocate`](Self::allocate); holds segments of `memory`.
    cache: Arc<BufferCache>,
    /// Public allocator of device memory; holds segments of `memory`.
    allocator: SiblingAllocator,
    /// Host memory registered through this device; holds registrations of `memory`.
    registrations: OnceLock<RegistrationCache>,
    registration_limit: Option<u64>,
    pinned_limit: Arc<PinnedLimit>,
    pub(crate) pool: AdvancedStreamPool,
    /// Streams for internal workers only.
    pub(crate) reserved: AdvancedStreamPool,
    pub(crate) event_streams: EventStreams,
    /// Whether a drain has returned the loss of the context.
    loss_reported: AtomicBool,
}

impl DeviceState {
    pub(crate) fn new(
        driver: Driver,
        device: CudaDevice,
        config: &CudaBackendConfig,
        pinned_limit: &Arc<PinnedLimit>,
    ) -> Result<Self> {
        let handle = device.driver();
        let mut info = DeviceInfo::new(device.id(), handle.name().map_err(lift)?);
        info.total_memory = Some(handle.total_memory().map_err(lift)? as u64);
        info.uuid = handle.uuid().ok();
        info.driver = format!("CUDA {} ({})", driver.version(), driver.origin());
        info.simulated = driver.is_simulated();
        info.kinds = vec![MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped];
        if device.supports_feature(CudaFeature::ManagedMemory)? {
            info.kinds.push(MemoryKind::Unified);
            info.concurrent_managed_access = device.supports_feature(CudaFeature::ConcurrentManagedAccess)?;
        }
        let pool = config.pool(&device)?;
        let reserved = AdvancedStreamPool::builder(&device).build()?;
        Ok(Self {
            id: device.id(),
            device,
            info,
            memory: OnceLock::new(),
            cache: Arc::default(),
            allocator: Arc::default(),
            registrations: OnceLock::new(),
            registration_limit: config.registration_limit,
            pinned_limit: Arc::clone(pinned_limit),
            pool,
            reserved,
            event_streams: EventStreams::default(),
            loss_reported: AtomicBool::new(false),
        })
    }

    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(crate) fn memory(&self) -> Result<&Arc<CudaMemoryManager>> {
        if let Some(memory) = self.memory.get() {
            return Ok(memory);
        }
        let made = Arc::new(CudaMemoryManager::new_with_pinned_limit(&self.device, &self.pinned_limit)?);
        Ok(self.memory.get_or_init(|| made))
    }

    pub(crate) fn allocator(&self) -> Result<&StreamOrderedAllocator> {
        if let Some(allocator) = self.allocator.get() {
            return Ok(allocator);
        }
        // Empty before the first request, so concurrent creation is harmless.
        let made = StreamOrderedAllocator::new(CudaResource::new(self.memory()?, MemoryKind::Device)?);
        let cache = Arc::downgrade(&self.cache);
        made.on_out_of_memory(move |_| {
            cache.upgrade().is_some_and(|cache| cache.trim(MemorySide::Device) > 0)
        });
        Ok(self.allocator.get_or_init(|| made))
    }

    pub(crate) fn registrations(&self) -> Result<&RegistrationCache> {
        /// Default limit in bytes: enough for buffers that are uploaded repeatedly, little of such a host's memory.
        const LIMIT: u64 = 8 << 30;
        if let Some(registrations) = self.registrations.get() {
            return Ok(registrations);
        }
        let made = RegistrationCache::new(self.memory()?, self.registration_limit.unwrap_or(LIMIT))?;
        Ok(self.registrations.get_or_init(|| made))
    }

    /// Returns a buffer that the calling thread dropped before, if any fits.
    #[inline]
    pub(crate) fn take_kept(&self, kind: MemoryKind, bytes: usize) -> Result<Option<RawBuffer>> {
        self.check_usable()?;
        Ok(self.cache.take_kept(kind, bytes))
    }

    /// Allocates a buffer. If memory is short, releases cached memory of the allocators and retries.
    pub(crate) fn allocate_new(&self, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        let owner = if MemorySide::of(kind) == MemorySide::Host { DeviceId::Cpu } else { self.id };
        self.retry_after_trim(MemorySide::of(kind), (Place::new(owner, kind), bytes), |memory| {
            match self.cache.allocate((&self.device, memory), &self.allocator, kind, bytes)? {
                Some(buffer) => Ok(buffer),
                None if kind == MemoryKind::Pinned => PinnedResource::new(memory).allocate_segment(bytes),
                None => memory.allocate(kind, bytes),
            }
        })
    }

    /// Calls `allocate`, for so many bytes at `place`. If memory is short, releases cached memory and retries once.
    pub(crate) fn retry_after_trim<B>(
        &self,
        side: MemorySide,
        (place, bytes): (Place, usize),
        allocate: impl Fn(&Arc<CudaMemoryManager>) -> Result<B>,
    ) -> Result<B> {
        self.check_usable()?;
        let refused = match allocate(self.memory()?) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => error,
            other => return other,
        };
        let sibling = self.allocator.get().filter(|_| side != MemorySide::Host);
        let of_allocator = sibling.map_or(0, |allocator| self.freed(allocator.trim()));
        let freed = self.cache.trim(side) + of_allocator;
        if freed == 0 {
            return Err(refused);
        }
        allocate(self.memory()?).inspect(|_| {
            report::allocation_retried(place, bytes as u64, "cached buffers were freed");
        })
    }

    /// Returns the bytes that a trim freed: none if it failed. The retry then reports the shortage.
    fn freed(&self, trimmed: Result<u64>) -> u64 {
        trimmed.unwrap_or_else(|error| {
            report::call_failed("memory is reclaimed elsewhere", self.id, &error);
            0
        })
    }

    /// Returns an error if the context is known to be lost.
    #[inline]
    pub(crate) fn check_usable(&self) -> Result<()> {
        if mutant!("backend-cuda/refuse-lost-device") { Ok(()) } else { self.device.check_usable() }
    }

    pub(crate) fn cached_pinned_bytes(&self) -> u64 {
        self.cache.pinned_bytes()
    }

    /// Frees pinned memory that is only kept, and ends idle registrations; returns how many bytes.
    pub(crate) fn trim_pinned(&self) -> u64 {
        let registered = self.registrations.get().map_or(0, |registrations| self.freed(registrations.trim()));
        let listed = self.memory_if_used().map_or(0, CudaMemoryManager::trim_lists);
        let trimmed = self.cache.trim(MemorySide::Host) + registered + listed;
        if trimmed > 0
            && let Some(memory) = self.memory.get()
        {
            // Another thread frees; only then do the bytes no longer count.
            self.freed(memory.release_cached().map(|()| 0));
        }
        trimmed
    }

    /// Waits for the streams, then releases cached memory. The loss of the context is returned once.
    pub(crate) fn drain(&self) -> Result<()> {
        match self.drain_all() {
            // A driver that answers nothing has no code of its own for that.
            Err(error) if error.kind() == ErrorKind::DeviceLost || self.device.check_usable().is_err() => {
                let reported = self.loss_reported.swap(true, Ordering::Relaxed);
                if reported { Ok(()) } else { Err(self.device.check_usable().err().unwrap_or(error)) }
            }
            other => other,
        }
    }

    fn drain_all(&self) -> Result<()> {
        let ended = if mutant!("backend-cuda/drain-ends-uses") {
            Ok(())
        } else {
            CudaStream::drain_loan_ends(self.id)
        };
        // Owners of adopted memory may hold buffers of this backend.
        let drops = self.device.drops();
        let mut outcome = ended.and(self.pool.synchronize()).and(self.reserved.synchronize());
        if !mutant!("backend-cuda/drain-drops-owners") {
            outcome = outcome.and(drops.drain());
        }
        if let Some(memory) = self.memory_if_used() {
            let trimmed = self.allocator.get().map_or(Ok(0), StreamOrderedAllocator::trim);
            // Last, since memory pending free may use registrations.
            outcome = outcome.and(self.cache.drain()).and(trimmed.map(|_| ())).and(memory.drain());
            if let Some(registrations) = self.registrations.get() {
                outcome = outcome.and(registrations.drain().map(|_| ())).and(drops.drain());
            }
        }
        // The last handle of an adopted stream may have been there.
        CudaStream::wait_for_poller();
        outcome.and(drops.drain())
    }

    /// Returns the counts of live memory.
    pub(crate) fn resource_counts(&self) -> ResourceCounts {
        let mut ledger = self.memory_if_used().map(CudaMemoryManager::resource_counts).unwrap_or_default();
        self.cache.add_to(&mut ledger);
        ledger
    }

    /// Returns the bytes of the device's memory that are allocated.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.memory_if_used().map_or(0, CudaMemoryManager::device_bytes)
    }

    /// Returns the memory manager, if it was created.
    fn memory_if_used(&self) -> Option<&CudaMemoryManager> {
        self.memory.get().map(AsRef::as_ref)
    }
}
