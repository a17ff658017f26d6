//! The CUDA backend.

use std::{
    fmt, ptr,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use transload_core::{
    Backend, DeviceId, DeviceInfo, EngineRecording, Error, ErrorKind, Fence, HeldPinned, ListCost,
    MemoryAdvice, MemoryInfo, MemoryKind, Operation, OperationSampling, OperationSink, PathCost, PeerAccess,
    PinnedCache, Place, Pod, QueueLease, RawBuffer, Recording, ResourceCounts, Result, SharedBuffer,
    StreamPriority, WorkloadType, events::report, mutant,
};
use transload_cuda_sys::Driver;
use transload_memory::{
    ActivityRecording, CudaDevice, CudaFeature, CudaMemoryManager, PinnedLimit, RegistrationCache, advise,
    lift,
};
use transload_streams::{AdvancedStreamPool, CudaGraph, StreamLease, StreamOrderedAllocator};

use crate::{
    CudaBackendConfig, CudaBuffer, costs,
    device::DeviceState,
    held_buffers::HeldBuffers,
    list_costs,
    peers::{Peers, pairs},
    share,
};

/// The devices of the CUDA driver. Usable from any thread.
pub struct CudaBackend {
    driver: Driver,
    states: Vec<DeviceState>,
    peers: Peers,
    pinned: Arc<PinnedLimit>,
    /// Caches of pinned memory outside the backend.
    pinned_caches: Mutex<Vec<Weak<dyn PinnedCache>>>,
    held_pinned: HeldBuffers,
}

impl CudaBackend {
    /// Loads the driver and lists the devices. Contexts are created on first use of each device, so this takes some
    /// milliseconds, once per process. It needs no async runtime and does not suspend.
    ///
    /// # Errors
    /// `NoDriver` with every path tried, `NoDevice`, `DriverTooOld`, `UnknownDevice` for an ordinal in the
    /// configuration that does not exist, `InvalidArgument` for an invalid number of streams.
    pub async fn initialize(config: CudaBackendConfig) -> Result<Arc<Self>> {
        Self::open(&config)
    }

    /// Like [`initialize`](Self::initialize), but outside async code.
    ///
    /// # Errors
    /// Those of `initialize`.
    pub fn open(config: &CudaBackendConfig) -> Result<Arc<Self>> {
        let driver = Driver::get().map_err(lift)?;
        let ordinals = match &config.devices {
            Some(ordinals) => ordinals.clone(),
            None => (0..driver.device_count().map_err(lift)?).collect(),
        };
        if ordinals.is_empty() {
            return Err(Error::new(ErrorKind::NoDevice, "the CUDA driver shows no device"));
        }
        let pinned = PinnedLimit::new(config.pinned_limit.unwrap_or(u64::MAX));
        let mut states: Vec<DeviceState> = Vec::with_capacity(ordinals.len());
        for ordinal in ordinals {
            if states.iter().any(|state| state.device.ordinal() == ordinal) {
                continue;
            }
            states.push(DeviceState::new(driver, CudaDevice::new(ordinal)?, config, &pinned)?);
        }
        Ok(Arc::new(Self {
            driver,
            states,
            peers: Peers::default(),
            pinned,
            pinned_caches: Mutex::default(),
            held_pinned: HeldBuffers::default(),
        }))
    }

    /// Allocates a typed buffer of `len` elements in the memory of the device with this ordinal. Its content is
    /// undefined.
    ///
    /// # Errors
    /// Those of [`Backend::allocate`]; `InvalidArgument` if `len` is 0 or the size overflows.
    pub fn create_buffer<T: Pod>(&self, ordinal: u32, len: usize) -> Result<CudaBuffer<T>> {
        let state = self.state(DeviceId::Cuda(ordinal))?;
        CudaBuffer::new(len, &state.pool, |bytes| self.allocate(state.id, MemoryKind::Device, bytes))
    }

    /// Returns a device of this backend.
    ///
    /// # Errors
    /// `UnknownDevice` with the valid ones.
    pub fn device(&self, ordinal: u32) -> Result<&CudaDevice> {
        self.state(DeviceId::Cuda(ordinal)).map(|state| &state.device)
    }

    /// Returns the memory manager of a device. Creates its context.
    ///
    /// # Errors
    /// `UnknownDevice`, or the driver's.
    pub fn memory(&self, ordinal: u32) -> Result<&Arc<CudaMemoryManager>> {
        self.state(DeviceId::Cuda(ordinal))?.memory()
    }

    /// Returns the stream-ordered allocator of a device's memory. Creates its context. [`drain`](Backend::drain)
    /// releases its cached memory to the device.
    ///
    /// # Errors
    /// `UnknownDevice`, or the driver's.
    pub fn allocator(&self, ordinal: u32) -> Result<&StreamOrderedAllocator> {
        self.state(DeviceId::Cuda(ordinal))?.allocator()
    }

    /// Returns the cache of memory that [`register`](Backend::register) keeps registered, to release some or all of it.
    /// Creates the first device's context.
    ///
    /// # Errors
    /// The driver's.
    pub fn registrations(&self) -> Result<&RegistrationCache> {
        let no_device = || Error::new(ErrorKind::NoDevice, "the CUDA backend has no device");
        self.states.first().ok_or_else(no_device)?.registrations()
    }

    /// Returns the stream pool of a device, to lease streams for other kernels.
    ///
    /// # Errors
    /// `UnknownDevice` with the valid ones.
    pub fn streams(&self, ordinal: u32) -> Result<&AdvancedStreamPool> {
        self.state(DeviceId::Cuda(ordinal)).map(|state| &state.pool)
    }

    /// Returns a fence of what an event of other code (a `CUevent`) recorded last. The event may be destroyed or recorded again once
    /// this returns.
    ///
    /// # Errors
    /// `UnknownDevice` with the valid ones; the driver's.
    ///
    /// # Safety
    /// * `handle` is a live event of this process. It was not recorded last by a stream that is being captured into a graph: the capture would
    ///   end with an error.
    pub unsafe fn fence_of_event(&self, ordinal: u32, handle: usize) -> Result<Fence> {
        let state = self.state(DeviceId::Cuda(ordinal))?;
        let event = ptr::with_exposed_provenance_mut(handle);
        // SAFETY: the caller's promise.
        unsafe { state.event_streams.fence_of(&state.device, event) }
    }

    /// Returns the limit on pinned host memory, and how much of it is used.
    #[must_use]
    pub fn pinned(&self) -> &PinnedLimit {
        &self.pinned
    }

    /// Returns how many of the [`pinned`](Self::pinned) bytes are in no use and kept for later allocations.
    #[must_use]
    pub fn cached_pinned_bytes(&self) -> u64 {
        self.states.iter().map(DeviceState::cached_pinned_bytes).sum()
    }

    /// Returns whether every device of the backend has a capability.
    ///
    /// # Errors
    /// The driver's.
    pub fn supports_feature(&self, feature: CudaFeature) -> Result<bool> {
        for state in &self.states {
            if !state.device.supports_feature(feature)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether the devices are those of a software driver.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.driver.is_simulated()
    }

    #[inline(always)]
    pub(crate) fn state(&self, device: DeviceId) -> Result<&DeviceState> {
        // Compares ordinals, since comparing any two devices takes longer.
        let DeviceId::Cuda(ordinal) = device else { return Err(self.no_such(device)) };
        let found = self.states.iter().find(|state| state.id == DeviceId::Cuda(ordinal));
        found.ok_or_else(|| self.no_such(device))
    }

    #[cold]
    fn no_such(&self, device: DeviceId) -> Error {
        let valid: Vec<String> = self.states.iter().map(|state| state.id.to_string()).collect();
        let text = format!("the CUDA backend has no device {device}; valid are {}", valid.join(", "));
        Error::new(ErrorKind::UnknownDevice, text)
    }

    /// Out of line, so that taking a kept buffer stays short: `transload-instructions` counts it.
    #[inline(never)]
    fn allocate_new(&self, state: &DeviceState, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        if is_host_pinned(kind) {
            // Before what is kept gives way for nothing.
            self.pinned.check(bytes)?;
        }
        let allocated =
            self.retry_pinned(kind, state.allocate_new(kind, bytes), || state.allocate_new(kind, bytes));
        if is_host_pinned(kind) {
            allocated.iter().for_each(|buffer| self.held_pinned.add(buffer));
        }
        allocated
    }

    /// Calls `again` if pinned memory was short and some could be freed.
    fn retry_pinned(
        &self,
        kind: MemoryKind,
        outcome: Result<RawBuffer>,
        again: impl Fn() -> Result<RawBuffer>,
    ) -> Result<RawBuffer> {
        match outcome {
            Err(error) if is_pinned_shortage(&error, kind) => {
                let outcome = if self.trim_pinned() > 0 { again().inspect(retried) } else { Err(error) };
                outcome.map_err(|error| self.pinned.explain(error))
            }
            other => other,
        }
    }

    /// Frees pinned memory that is only kept, by any device or elsewhere; returns how many bytes.
    #[cold]
    fn trim_pinned(&self) -> u64 {
        self.held_pinned.settle();
        // Copied first: releasing calls back, to free the buffers.
        let caches = self.pinned_caches.lock().clone();
        let elsewhere = caches.iter().filter_map(Weak::upgrade).map(|cache| cache.release_unused());
        let elsewhere = if mutant!("backend-cuda/pinned-caches") { 0 } else { elsewhere.sum() };
        elsewhere + self.states.iter().map(DeviceState::trim_pinned).sum::<u64>()
    }

    fn has(&self, device: DeviceId) -> bool {
        self.states.iter().any(|state| state.id == device)
    }
}

fn is_pinned_shortage(error: &Error, kind: MemoryKind) -> bool {
    is_host_pinned(kind) && error.kind() == ErrorKind::OutOfMemory
}

fn is_host_pinned(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Pinned | MemoryKind::Mapped)
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.states.iter().map(|state| state.info().clone()).collect()
    }

    /// Allocates memory. Device memory of up to 256 MiB and pinned memory of up to 64 MiB reuses cached memory of
    /// dropped buffers that is idle, without a driver call. Memory is cached until [`drain`](Backend::drain), or until
    /// memory is short. Then this may also reuse memory that is still in use, or block until such work is complete.
    fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        let state = self.state(device)?;
        let kept = state.take_kept(kind, bytes);
        let allocated = kept.and_then(|kept| kept.map_or_else(|| self.allocate_new(state, kind, bytes), Ok));
        report::emit_deferred();
        allocated
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.state(device)?.memory()?.info()
    }

    fn lease_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        workload: WorkloadType,
    ) -> Result<QueueLease> {
        let state = self.state(device)?;
        state.check_usable()?;
        Ok(state.pool.lease(priority, workload)?.into_queue())
    }

    fn lease_reserved_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        workload: WorkloadType,
    ) -> Result<QueueLease> {
        let state = self.state(device)?;
        state.check_usable()?;
        Ok(state.reserved.lease(priority, workload)?.into_queue())
    }

    fn lease_existing_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        workload: WorkloadType,
        reserved: bool,
    ) -> Result<Option<QueueLease>> {
        let state = self.state(device)?;
        state.check_usable()?;
        let pool = if reserved { &state.reserved } else { &state.pool };
        Ok(pool.lease_existing(priority, workload).map(StreamLease::into_queue))
    }

    fn copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        match (src.device, dst.device) {
            (from, to) if from == to => self.has(from).then_some(from),
            (DeviceId::Cpu, device) | (device, DeviceId::Cpu) => self.has(device).then_some(device),
            // Copies between devices are peer copies or staged through the host.
            _ => None,
        }
    }

    fn in_place_copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        let (near, far) = if src.device.is_cpu() { (src, dst) } else { (dst, src) };
        // With unified addressing pinned memory is mapped too; otherwise a buffer has no device address.
        let kinds = [MemoryKind::Mapped, MemoryKind::Pinned];
        let mapped = |place: Place| place.device.is_cpu() && kinds.contains(&place.kind);
        if mapped(near) && mapped(far) {
            // Any device can access mapped memory.
            return self.states.first().map(|state| state.id);
        }
        let visible = near.device == far.device || mapped(near);
        (visible && self.has(far.device)).then_some(far.device)
    }

    fn caster(&self, src: Place, dst: Place) -> Option<DeviceId> {
        (src.device == dst.device && self.has(src.device)).then_some(src.device)
    }

    fn prepare_in_place(&self, device: DeviceId) -> Result<()> {
        let state = self.state(device)?;
        state.check_usable()?;
        state.pool.prepare_in_place()
    }

    fn is_prepared_in_place(&self, device: DeviceId) -> bool {
        self.state(device).is_ok_and(|state| state.pool.is_prepared_in_place())
    }

    fn record(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        operations: &[Operation<'_>],
    ) -> Result<Arc<dyn Recording>> {
        Ok(Arc::new(CudaGraph::record(&self.state(device)?.device, priority, operations)?))
    }

    fn attach_sink(&self, sink: &Arc<dyn OperationSink>, sampling: OperationSampling) -> Result<()> {
        let slots = || self.states.iter().map(|state| state.device.profile().sink());
        for (index, slot) in slots().enumerate() {
            slot.attach(Arc::clone(sink), sampling).inspect_err(|_| {
                // The others may have this sink since before.
                slots().take(index).for_each(|slot| slot.detach(sink));
            })?;
        }
        Ok(())
    }

    fn detach_sink(&self, sink: &Arc<dyn OperationSink>) {
        self.states.iter().for_each(|state| state.device.profile().sink().detach(sink));
    }

    fn idle_pinned_bytes(&self) -> u64 {
        let caches = self.pinned_caches.lock().clone();
        let elsewhere = caches.iter().filter_map(Weak::upgrade).map(|cache| cache.unused_bytes());
        self.cached_pinned_bytes() + elsewhere.sum::<u64>()
    }

    fn held_pinned(&self) -> Vec<HeldPinned> {
        self.held_pinned.read()
    }

    fn record_engines(&self) -> Result<Box<dyn EngineRecording>> {
        Ok(Box::new(ActivityRecording::start(self.states.iter().map(|state| &state.device))?))
    }

    fn add_pinned_cache(&self, cache: Weak<dyn PinnedCache>) {
        let mut caches = self.pinned_caches.lock();
        caches.retain(|cache| cache.strong_count() > 0);
        caches.push(cache);
    }

    /// Registers through the first device, for all devices: see [`RegistrationCache::register`].
    fn register(&self, buffer: &RawBuffer) -> Result<RawBuffer> {
        let registrations = self.registrations()?;
        let outcome = registrations.register(buffer);
        // What is kept would give way for nothing.
        let fits = buffer.len() as u64 <= registrations.limit() && self.pinned.check(buffer.len()).is_ok();
        if !fits && !mutant!("backend-cuda/registrations-alone") {
            let explain = |error| match is_pinned_shortage(&error, MemoryKind::Pinned) {
                true => self.pinned.explain(error),
                false => error,
            };
            return outcome.map_err(explain);
        }
        self.retry_pinned(MemoryKind::Pinned, outcome, || registrations.register(buffer))
    }

    /// Registers for all devices: see [`RegistrationCache::register_until_freed`].
    fn register_until_freed(&self, buffer: &RawBuffer) -> Result<()> {
        self.registrations()?.register_until_freed(buffer)
    }

    /// `None` if pinned memory is limited, since the limit is for what the caller pins.
    fn registration_time(&self, bytes: u64) -> Option<Duration> {
        (self.pinned.limit() == u64::MAX).then(|| costs::registration(bytes))
    }

    fn share(&self, buffer: &RawBuffer, device: DeviceId) -> Result<SharedBuffer> {
        share::share(self, buffer, device)
    }

    fn default_costs(&self) -> Vec<PathCost> {
        let own = self.states.iter().flat_map(|state| {
            let (id, kinds) = (state.id, &state.info().kinds);
            // A device may lack managed memory.
            let has = move |place: Place| place.device != id || kinds.contains(&place.kind);
            costs::of(id).into_iter().filter(move |cost| has(cost.path.src) && has(cost.path.dst))
        });
        let between = |(src, dst)| costs::across(src, dst).into_iter().chain([costs::between(src, dst)]);
        own.chain(pairs(&self.states).flat_map(between)).collect()
    }

    fn default_list_costs(&self) -> Vec<ListCost> {
        list_costs::all(&self.states, &self.peers)
    }

    fn advise(&self, buffer: &RawBuffer, advice: MemoryAdvice) -> Result<()> {
        advise(buffer, advice)
    }

    fn peer_access(&self, device: DeviceId, peer: DeviceId) -> Result<PeerAccess> {
        self.peers.access(self.state(device)?, self.state(peer)?)
    }

    fn enable_peer_access(&self, device: DeviceId, peer: DeviceId) -> Result<()> {
        self.peers.enable(self.state(device)?, self.state(peer)?)
    }

    fn resource_counts(&self) -> ResourceCounts {
        self.held_pinned.settle();
        let mut sum = ResourceCounts::default();
        for state in &self.states {
            sum.leases += (state.pool.leases() + state.reserved.leases()) as u64;
            let ledger = state.resource_counts();
            sum.allocations += ledger.allocations;
            sum.bytes += ledger.bytes;
            sum.cached_bytes += ledger.cached_bytes;
            sum.pending_free += ledger.pending_free;
        }
        sum
    }

    fn device_bytes(&self, device: DeviceId) -> Option<u64> {
        self.state(device).ok().map(|state| state.device_bytes())
    }

    fn attach_thread(&self) -> Option<Box<dyn std::any::Any>> {
        let relaxed = transload_cuda_sys::RelaxedCapture::enter().inspect_err(|error| {
            report::call_failed("calls of a thread may invalidate a capture", None, error);
        });
        Some(Box::new(relaxed.ok()?))
    }

    fn drain(&self) -> Result<()> {
        self.held_pinned.settle();
        let mut outcome = Ok(());
        // Drain every device, even after an error.
        for state in &self.states {
            outcome = outcome.and(state.drain());
        }
        report::emit_deferred();
        outcome
    }
}

fn retried(buffer: &RawBuffer) {
    report::allocation_retried(buffer.place(), buffer.len() as u64, "idle pinned memory was released");
}

impl fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<DeviceId> = self.states.iter().map(|state| state.id).collect();
        f.debug_struct("CudaBackend").field("driver", &self.driver).field("devices", &devices).finish()
    }
}
