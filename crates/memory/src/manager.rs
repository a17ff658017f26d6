//! Allocates every kind of CUDA memory for one device, and knows what is alive.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use transload_core::{
    DeviceId, Error, ErrorKind, Fence, MemoryInfo, MemoryKind, MemoryShortage, Place, RawBuffer, Reclaimer,
    ResourceCounts, Result,
};
use transload_cuda_sys::Context;

use crate::{
    CudaDevice, CudaFeature,
    allocation_counts::AllocationCounts,
    error::{check_usable, lift_allocation, memory_info, record_loss},
    lift,
    storage::{DeviceSource, DriverMemory, FreeThread},
};

/// Memory of one device: allocation is thread-safe, freeing never waits for the device.
pub struct CudaMemoryManager {
    device: CudaDevice,
    context: Context,
    source: OnceLock<DeviceSource>,
    pools: bool,
    managed: bool,
    concurrent: bool,
    free_thread: Arc<FreeThread>,
    reclaimer: Arc<Reclaimer>,
    counts: Arc<AllocationCounts>,
    /// Whether a drain returned the loss of the context.
    loss_reported: AtomicBool,
}

/// On what mode memory is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocMode {
    /// Those of [`CudaMemoryManager::allocate`].
    Default,
    /// Host memory that goes past the host's caches, and is only ever a source.
    WriteCombined,
    /// Managed memory beyond what the device has free.
    Oversubscribed,
}

/// See [`CudaMemoryManager::alloc`].
pub(crate) struct AllocContext<'a> {
    pub(crate) context: &'a Context,
    pub(crate) free_thread: &'a Arc<FreeThread>,
    pub(crate) reclaimer: &'a Arc<Reclaimer>,
    pub(crate) counts: &'a Arc<AllocationCounts>,
}

impl CudaMemoryManager {
    /// A manager for the device; makes or joins its primary context.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            context: device.context()?.clone(),
            source: OnceLock::new(),
            pools: device.supports_feature(CudaFeature::MemoryPools)?,
            managed: device.supports_feature(CudaFeature::ManagedMemory)?,
            concurrent: device.supports_feature(CudaFeature::ConcurrentManagedAccess)?,
            free_thread: FreeThread::start()?,
            reclaimer: Arc::new(Reclaimer::new()),
            counts: AllocationCounts::new(device.ordinal()),
            loss_reported: AtomicBool::new(false),
        })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The kinds of memory that [`allocate`](Self::allocate) gives.
    #[must_use]
    pub fn kinds(&self) -> Vec<MemoryKind> {
        let mut kinds = vec![MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Device];
        if self.managed {
            kinds.push(MemoryKind::Unified);
        }
        kinds
    }

    /// Allocates `bytes` (at least 1) of a kind. Device and fresh pinned memory has no defined content.
    ///
    /// Where the device is out of memory, parked and cached memory is given back first and the driver asked again. For what is
    /// freed only by waiting for the device it waits at most two seconds: the caller may be the one that the device waits for.
    /// Unified memory beyond what the device has free, or more of it in all than the device has, is refused, since
    /// oversubscribing it can stall the device; [`CudaResource::oversubscribed`](crate::CudaResource::oversubscribed) gives it. In all is what
    /// every manager of the device in this process gave, but for what others gave on such a request.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes, `Unsupported` for a kind that the device does not have, `OutOfMemory` with the
    /// numbers, `DeviceLost` with the first cause, or the driver's.
    pub fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        self.allocate_as(kind, bytes, AllocMode::Default)
    }

    /// As [`allocate`](Self::allocate), on other mode than the usual.
    pub(crate) fn allocate_as(&self, kind: MemoryKind, bytes: usize, mode: AllocMode) -> Result<RawBuffer> {
        if bytes == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "an allocation needs at least 1 byte"));
        }
        self.with_retry(|| self.try_allocate(kind, bytes, mode))
    }

    /// Allocates; if memory is short, gives back what is kept without need and tries again.
    pub(crate) fn with_retry(&self, allocate: impl Fn() -> Result<RawBuffer>) -> Result<RawBuffer> {
        check_usable(&self.context)?;
        self.reclaimer.sweep();
        match allocate().inspect_err(|error| record_loss(&self.context, error)) {
            // If giving back fails too, it is still memory that the caller lacks.
            Err(error) if error.kind() == ErrorKind::OutOfMemory && self.release_cached().is_ok() => {
                allocate()
            }
            other => other,
        }
    }

    fn try_allocate(&self, kind: MemoryKind, bytes: usize, mode: AllocMode) -> Result<RawBuffer> {
        let alloc = self.alloc_context();
        let memory = match kind {
            MemoryKind::Device => DriverMemory::device(&alloc, self.source()?, bytes),
            MemoryKind::Pinned | MemoryKind::Mapped => {
                DriverMemory::host(&alloc, kind, mode == AllocMode::WriteCombined, bytes)
            }
            MemoryKind::Unified if self.managed => {
                let counted = if mode == AllocMode::Oversubscribed {
                    self.counts.add_oversubscribed(bytes)
                } else {
                    let most = self.managed_limit(bytes)?;
                    self.counts.add_managed(bytes, most).map_err(|held| {
                        // What may still come beside the managed memory that there is, wherever its pages are.
                        self.managed_shortage(bytes, most.saturating_sub(held), most)
                    })?
                };
                DriverMemory::managed(&alloc, self.concurrent, bytes, counted)
            }
            MemoryKind::Unified | MemoryKind::Pageable => return Err(self.unsupported_kind(kind)),
        };
        let is_hosts = matches!(kind, MemoryKind::Pinned | MemoryKind::Mapped);
        let place = Place::new(if is_hosts { DeviceId::Cpu } else { self.device.id() }, kind);
        let memory = memory.map_err(|error| lift_allocation(error, &self.context, place, bytes))?;
        Ok(RawBuffer::new(Box::new(memory), &self.reclaimer))
    }

    fn source(&self) -> Result<&DeviceSource> {
        if let Some(source) = self.source.get() {
            return Ok(source);
        }
        let made = DeviceSource::new(&self.context, self.pools).map_err(lift)?;
        Ok(self.source.get_or_init(|| made))
    }

    /// Lets `peer` use this device's memory, what is allocated already included: a stream-ordered pool grants access by
    /// itself, whatever the contexts enabled. Asking again changes nothing.
    ///
    /// # Errors
    /// The driver's.
    pub fn allow_peer(&self, peer: &CudaDevice) -> Result<()> {
        self.source()?.allow(peer.driver()).map_err(lift)
    }

    /// The most bytes of managed memory at a time, where `bytes` more fit into what is free now.
    fn managed_limit(&self, bytes: usize) -> Result<u64> {
        let MemoryInfo { free, total } = self.info()?;
        if bytes as u64 <= free { Ok(total) } else { Err(self.managed_shortage(bytes, free, total)) }
    }

    fn managed_shortage(&self, bytes: usize, free: u64, total: u64) -> Error {
        let shortage = MemoryShortage { requested: bytes as u64, free: Some(free), total: Some(total) };
        Error::out_of_memory(Place::new(self.device.id(), MemoryKind::Unified), shortage)
    }

    /// What memory made elsewhere in this crate, in the manager's name, is made and given back with.
    pub(crate) fn alloc_context(&self) -> AllocContext<'_> {
        let Self { context, free_thread, reclaimer, counts, .. } = self;
        AllocContext { context, free_thread, reclaimer, counts }
    }

    pub(crate) fn unsupported_kind(&self, kind: MemoryKind) -> Error {
        let valid: Vec<String> = self.kinds().iter().map(ToString::to_string).collect();
        Error::new(
            ErrorKind::Unsupported,
            format!("{} gives no {kind} memory; valid are {}", self.device.id(), valid.join(", ")),
        )
    }

    /// Frees what is parked and over, and gives cached memory back to the device. Frees that wait for the device are waited for as
    /// in [`allocate`](Self::allocate).
    pub(crate) fn release_cached(&self) -> Result<()> {
        /// The calling thread may be the one that the device waits for.
        const LIMIT: Duration = Duration::from_secs(2);
        self.release_cached_within(
            (!transload_core::mutant!("memory/shortage-wait-is-bounded")).then_some(LIMIT),
        )
    }

    fn release_cached_within(&self, limit: Option<Duration>) -> Result<()> {
        self.reclaimer.sweep();
        self.free_thread.drain(limit);
        self.source.get().map_or(Ok(()), DeviceSource::trim).map_err(lift)
    }

    /// Free and total bytes of the device's memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn info(&self) -> Result<MemoryInfo> {
        memory_info(&self.context).map_err(lift)
    }

    /// What is alive.
    #[must_use]
    pub fn resource_counts(&self) -> ResourceCounts {
        let mut ledger = ResourceCounts::default();
        ledger.allocations = self.counts.allocations();
        ledger.bytes = self.counts.bytes();
        ledger.parked = self.reclaimer.len() as u64;
        ledger
    }

    /// Waits for the operations that parked memory waits for, frees it, and gives cached memory back. Blocks until the device has
    /// done all work so far if memory is freed only by waiting for that, and as long as a [`FreeDeferral`](crate::FreeDeferral) lives. Memory of a
    /// lost context is gone with it, pinned memory too: what the driver does not free counts no more.
    ///
    /// # Errors
    /// The first error of an operation that failed; all memory is freed all the same. `DeviceLost` once for a lost context.
    /// `Busy` if memory stays parked because of someone's capture.
    pub fn drain(&self) -> Result<()> {
        let outcome = self.reclaimer.drain();
        match outcome.and(self.release_cached_within(None)) {
            Err(error) if error.kind() == ErrorKind::DeviceLost => {
                record_loss(&self.context, &error);
                let told = self.loss_reported.swap(true, Ordering::Relaxed);
                if told { Ok(()) } else { Err(check_usable(&self.context).err().unwrap_or(error)) }
            }
            other => other,
        }
    }
}

impl CudaMemoryManager {
    /// As [`drain`](Self::drain), of what only devices still use: a caller that is short of memory may be the one that must end the rest. Frees
    /// that wait for the device are waited for as in [`allocate`](Self::allocate).
    pub(crate) fn drain_device_work(&self) -> Result<()> {
        let outcome = self.reclaimer.drain_where(is_device_fence);
        outcome.and(self.release_cached())
    }
}

/// Whether the fence is of a device's work, not of another backend's on the host.
pub(crate) fn is_device_fence(fence: &Fence) -> bool {
    !fence.timeline().device().is_cpu()
}

impl fmt::Debug for CudaMemoryManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaMemoryManager")
            .field("device", &self.device)
            .field("ledger", &self.resource_counts())
            .finish_non_exhaustive()
    }
}
