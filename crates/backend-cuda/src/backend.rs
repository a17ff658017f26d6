//! The CUDA backend: every device of the process behind core's `Backend`.

use std::{fmt, sync::Arc};

use transload_core::{
    Backend, DeviceId, DeviceInfo, Error, ErrorKind, MemoryAdvice, MemoryInfo, MemoryKind, Operation,
    PathCost, PeerAccess, Place, Pod, QueueLease, RawBuffer, Recording, ResourceCounts, Result, SharedBuffer,
    StreamPriority, WorkloadType,
};
use transload_cuda_sys::Driver;
use transload_memory::{CudaDevice, CudaFeature, CudaMemoryManager, RegistrationCache, advise, lift};
use transload_streams::{AdvancedStreamPool, CudaGraph, StreamOrderedAllocator};

use crate::{CudaBackendConfig, CudaBuffer, costs, device::DeviceState, peers::Peers, share};

/// The devices of the CUDA driver. Cheap to share; usable from any thread.
pub struct CudaBackend {
    driver: Driver,
    states: Vec<DeviceState>,
    peers: Peers,
}

impl CudaBackend {
    /// Loads the driver and lists the devices. Contexts are made on first use of each device, so this takes some
    /// milliseconds once per process. It needs no async runtime and does not suspend.
    ///
    /// # Errors
    /// `NoDriver` naming what was tried, `NoDevice`, `DriverTooOld`, `UnknownDevice` for an ordinal in the
    /// configuration that does not exist, `InvalidArgument` for a number of streams that is not possible.
    pub async fn initialize(config: CudaBackendConfig) -> Result<Arc<Self>> {
        Self::open(&config)
    }

    /// As [`initialize`](Self::initialize), outside async code.
    ///
    /// # Errors
    /// As for `initialize`.
    pub fn open(config: &CudaBackendConfig) -> Result<Arc<Self>> {
        let driver = Driver::get().map_err(lift)?;
        let ordinals = match &config.devices {
            Some(ordinals) => ordinals.clone(),
            None => (0..driver.device_count().map_err(lift)?).collect(),
        };
        if ordinals.is_empty() {
            return Err(Error::new(ErrorKind::NoDevice, "the CUDA driver shows no device"));
        }
        let mut states: Vec<DeviceState> = Vec::with_capacity(ordinals.len());
        for ordinal in ordinals {
            if states.iter().any(|state| state.device.ordinal() == ordinal) {
                continue;
            }
            states.push(DeviceState::new(driver, CudaDevice::new(ordinal)?, config)?);
        }
        Ok(Arc::new(Self { driver, states, peers: Peers::default() }))
    }

    /// A typed buffer of `len` elements in the memory of the device with this ordinal. Its content is undefined.
    ///
    /// # Errors
    /// Those of [`Backend::allocate`]; `InvalidArgument` where `len` is 0 or the size overflows.
    pub fn create_buffer<T: Pod>(&self, ordinal: u32, len: usize) -> Result<CudaBuffer<T>> {
        let state = self.state(DeviceId::Cuda(ordinal))?;
        CudaBuffer::new(len, &state.pool, |bytes| state.allocate(MemoryKind::Device, bytes))
    }

    /// A device of this backend.
    ///
    /// # Errors
    /// `UnknownDevice` naming the valid ones.
    pub fn device(&self, ordinal: u32) -> Result<&CudaDevice> {
        self.state(DeviceId::Cuda(ordinal)).map(|state| &state.device)
    }

    /// The memory of a device; makes its context.
    ///
    /// # Errors
    /// `UnknownDevice`, or the driver's.
    pub fn memory(&self, ordinal: u32) -> Result<&Arc<CudaMemoryManager>> {
        self.state(DeviceId::Cuda(ordinal))?.memory()
    }

    /// The allocator of a device's own memory in the order of streams; makes its context. What it holds without need goes
    /// back to the device by [`drain`](Backend::drain).
    ///
    /// # Errors
    /// `UnknownDevice`, or the driver's.
    pub fn allocator(&self, ordinal: u32) -> Result<&StreamOrderedAllocator> {
        self.state(DeviceId::Cuda(ordinal))?.allocator()
    }

    /// What [`register`](Backend::register) keeps registered, to let go of some of it or of all; makes the first device's
    /// context.
    ///
    /// # Errors
    /// The driver's.
    pub fn registrations(&self) -> Result<&RegistrationCache> {
        let no_device = || Error::new(ErrorKind::NoDevice, "the CUDA backend has no device");
        self.states.first().ok_or_else(no_device)?.registrations()
    }

    /// The streams of a device: to lease some for one's own kernels, and to set how they are chosen.
    ///
    /// # Errors
    /// `UnknownDevice` naming the valid ones.
    pub fn streams(&self, ordinal: u32) -> Result<&AdvancedStreamPool> {
        self.state(DeviceId::Cuda(ordinal)).map(|state| &state.pool)
    }

    /// Whether every device of the backend has a capability.
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

    /// Whether the devices are a software driver's.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.driver.is_simulated()
    }

    #[inline]
    pub(crate) fn state(&self, device: DeviceId) -> Result<&DeviceState> {
        self.states.iter().find(|state| state.id == device).ok_or_else(|| self.no_such(device))
    }

    #[cold]
    fn no_such(&self, device: DeviceId) -> Error {
        let valid: Vec<String> = self.states.iter().map(|state| state.id.to_string()).collect();
        let text = format!("the CUDA backend has no device {device}; valid are {}", valid.join(", "));
        Error::new(ErrorKind::UnknownDevice, text)
    }

    fn has(&self, device: DeviceId) -> bool {
        self.states.iter().any(|state| state.id == device)
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.states.iter().map(|state| state.info().clone()).collect()
    }

    /// Device memory of up to 256 MiB and pinned memory of up to 64 MiB is that of earlier buffers of such a size, where there is
    /// any that nothing in flight uses, without a call to the driver. What buffers leave is kept until [`drain`](Backend::drain),
    /// or until memory is short. Then a buffer may also begin behind work in flight, and this may block until such work is over.
    fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        self.state(device)?.allocate(kind, bytes)
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

    fn copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        match (src.device, dst.device) {
            (from, to) if from == to => self.has(from).then_some(from),
            (DeviceId::Cpu, device) | (device, DeviceId::Cpu) => self.has(device).then_some(device),
            // Between devices bytes go by peer copies or through the host, not by one queue's plain copy.
            _ => None,
        }
    }

    fn in_place_copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        let (near, far) = if src.device.is_cpu() { (src, dst) } else { (dst, src) };
        // With unified addressing pinned memory is mapped as well; a buffer that is not has no device address.
        let kinds = [MemoryKind::Mapped, MemoryKind::Pinned];
        let mapped = |place: Place| place.device.is_cpu() && kinds.contains(&place.kind);
        if mapped(near) && mapped(far) {
            // Mapped memory is every device's.
            return self.states.first().map(|state| state.id);
        }
        let visible = near.device == far.device || mapped(near);
        (visible && self.has(far.device)).then_some(far.device)
    }

    fn prepare_in_place(&self, device: DeviceId) -> Result<()> {
        let state = self.state(device)?;
        state.check_usable()?;
        state.pool.prepare_in_place()
    }

    fn record(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        operations: &[Operation<'_>],
    ) -> Result<Arc<dyn Recording>> {
        Ok(Arc::new(CudaGraph::record(&self.state(device)?.device, priority, operations)?))
    }

    /// Through the first device of the backend, for all of them: see [`RegistrationCache::register`].
    fn register(&self, buffer: &RawBuffer) -> Result<RawBuffer> {
        self.registrations()?.register(buffer)
    }

    fn share(&self, buffer: &RawBuffer, device: DeviceId) -> Result<SharedBuffer> {
        share::share(self, buffer, device)
    }

    fn default_costs(&self) -> Vec<PathCost> {
        let ids = || self.states.iter().map(|state| state.id);
        let peers = ids().flat_map(|src| ids().map(move |dst| (src, dst))).filter(|(src, dst)| src != dst);
        let own = self.states.iter().flat_map(|state| {
            let (id, kinds) = (state.id, &state.info().kinds);
            // Not every device has managed memory.
            let has = move |place: Place| place.device != id || kinds.contains(&place.kind);
            costs::of(id).into_iter().filter(move |cost| has(cost.path.src) && has(cost.path.dst))
        });
        let peers = peers
            .flat_map(|(src, dst)| costs::across(src, dst).into_iter().chain([costs::between(src, dst)]));
        own.chain(peers).collect()
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
        let mut sum = ResourceCounts::default();
        for state in &self.states {
            sum.leases += (state.pool.leases() + state.reserved.leases()) as u64;
            let ledger = state.resource_counts();
            sum.allocations += ledger.allocations;
            sum.bytes += ledger.bytes;
            sum.parked += ledger.parked;
        }
        sum
    }

    fn attach_thread(&self) -> Option<Box<dyn std::any::Any>> {
        // An error leaves the thread as it is: it may disturb a capture then, but nothing else.
        let relaxed = transload_cuda_sys::RelaxedCapture::enter().ok()?;
        Some(Box::new(relaxed))
    }

    fn drain(&self) -> Result<()> {
        let mut outcome = Ok(());
        // Every device is drained, also after an error.
        for state in &self.states {
            outcome = outcome.and(state.drain());
        }
        outcome
    }
}

impl fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<DeviceId> = self.states.iter().map(|state| state.id).collect();
        f.debug_struct("CudaBackend").field("driver", &self.driver).field("devices", &devices).finish()
    }
}
