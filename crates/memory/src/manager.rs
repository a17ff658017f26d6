//! Allocation of every kind of CUDA memory for one device, and counts of live memory.

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
    ResourceCounts, Result, events::report,
};
use transload_cuda_sys::Context;

use crate::{
    CudaDevice, CudaFeature, PinnedLimit,
    allocation_counts::AllocationCounts,
    error::{check_usable, lift_allocation, memory_info, record_loss},
    lift, lift_in,
    pinned_limit::Pinned,
    storage::{DeviceSource, DriverMemory, FreeThread},
};

/// Memory manager of one device. Allocation is thread-safe; freeing never waits for the device.
///
/// Pinned and mapped memory is given back to the driver soon after its last handle was dropped, on a thread of the library's. If any
/// kernel or copy runs on the device then, of whatever code, nearly all CUDA calls of the process wait until it ends (measured on an
/// H200 with driver 580). An allocator, as behind `Backend::allocate`, keeps such memory instead.
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
    /// Whether a drain has reported the loss of the context.
    loss_reported: AtomicBool,
}

/// How memory is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocMode {
    /// As [`CudaMemoryManager::allocate`] does.
    Default,
    /// Write-combined host memory; only a source of transfers.
    WriteCombined,
    /// Managed memory that may exceed the device's free memory.
    Oversubscribed,
}

/// What allocations elsewhere in this crate need from a manager.
pub(crate) struct AllocContext<'a> {
    pub(crate) context: &'a Context,
    pub(crate) free_thread: &'a Arc<FreeThread>,
    pub(crate) reclaimer: &'a Arc<Reclaimer>,
    pub(crate) counts: &'a Arc<AllocationCounts>,
}

impl CudaMemoryManager {
    /// Creates a manager for the device; creates or retains its primary context.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        let limit = PinnedLimit::new(u64::MAX);
        if transload_core::mutant!("memory/lists-within-the-limit") {
            device.lists().set_limit(&limit);
        }
        Self::within(device, &limit)
    }

    /// Like [`new`](Self::new), with a limit on the host memory that it pins, which other managers may share.
    ///
    /// # Errors
    /// The driver's.
    pub fn new_with_pinned_limit(device: &CudaDevice, limit: &Arc<PinnedLimit>) -> Result<Self> {
        // The first one that is given counts lists of batches.
        device.lists().set_limit(limit);
        Self::within(device, limit)
    }

    fn within(device: &CudaDevice, limit: &Arc<PinnedLimit>) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            context: device.context()?.clone(),
            source: OnceLock::new(),
            pools: device.supports_feature(CudaFeature::MemoryPools)?,
            managed: device.supports_feature(CudaFeature::ManagedMemory)?,
            concurrent: device.supports_feature(CudaFeature::ConcurrentManagedAccess)?,
            free_thread: FreeThread::start()?,
            reclaimer: Arc::new(Reclaimer::new()),
            counts: AllocationCounts::new(device.ordinal(), limit),
            loss_reported: AtomicBool::new(false),
        })
    }

    /// Returns the limit on the host memory that it pins.
    #[must_use]
    pub fn pinned_limit(&self) -> &Arc<PinnedLimit> {
        self.counts.pinned()
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Returns the kinds of memory that [`allocate`](Self::allocate) supports.
    #[must_use]
    pub fn kinds(&self) -> Vec<MemoryKind> {
        let mut kinds = vec![MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Device];
        if self.managed {
            kinds.push(MemoryKind::Unified);
        }
        kinds
    }

    /// Allocates `bytes` (at least 1) of a kind. The content of device memory and of fresh pinned memory is undefined.
    ///
    /// If memory is short, releases memory pending free and cached memory and retries once. Frees that need a device synchronisation
    /// are waited for at most two seconds, because the device may be waiting for the calling thread.
    ///
    /// Unified memory is refused if it exceeds the device's free memory, or if all of it would exceed the device's total, because
    /// oversubscription can stall the device; use [`CudaResource::oversubscribed`](crate::CudaResource::oversubscribed) for that.
    /// The total covers all managers of the device in this process, except what others oversubscribed.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 bytes, `Unsupported` for a kind that the device does not have, `OutOfMemory` with the
    /// numbers, `DeviceLost` with the first cause, or the driver's.
    pub fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        let allocated = self.allocate_as(kind, bytes, AllocMode::Default);
        report::emit_deferred();
        allocated
    }

    /// Like [`allocate`](Self::allocate), but in the given mode.
    pub(crate) fn allocate_as(&self, kind: MemoryKind, bytes: usize, mode: AllocMode) -> Result<RawBuffer> {
        if bytes == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "an allocation needs at least 1 byte"));
        }
        self.with_retry(|| self.try_allocate(kind, bytes, mode))
    }

    /// Allocates; if memory is short, releases cached memory and retries once.
    pub(crate) fn with_retry(&self, allocate: impl Fn() -> Result<RawBuffer>) -> Result<RawBuffer> {
        check_usable(&self.context)?;
        self.reclaimer.sweep();
        let refused = match allocate().inspect_err(|error| record_loss(&self.context, error)) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => error,
            other => return other,
        };
        if let Err(error) = self.release_cached() {
            report::call_failed("the allocation fails with the shortage", self.device.id(), &error);
            return Err(refused);
        }
        allocate().inspect(|buffer| {
            report::allocation_retried(buffer.place(), buffer.len() as u64, "cached memory was released");
        })
    }

    fn try_allocate(&self, kind: MemoryKind, bytes: usize, mode: AllocMode) -> Result<RawBuffer> {
        let alloc = self.alloc_context();
        let memory = match kind {
            MemoryKind::Device => DriverMemory::device(&alloc, self.source()?, bytes),
            MemoryKind::Pinned | MemoryKind::Mapped => {
                let counted = alloc.counts.add_pinned(bytes, Pinned::Allocated)?;
                DriverMemory::host(&alloc, kind, mode == AllocMode::WriteCombined, bytes, counted)
            }
            MemoryKind::Unified if self.managed => {
                let counted = if mode == AllocMode::Oversubscribed {
                    self.counts.add_oversubscribed(bytes)
                } else {
                    let most = self.managed_limit(bytes)?;
                    self.counts.add_managed(bytes, most).map_err(|held| {
                        // Managed memory still available under the limit, wherever its pages are.
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

    /// Grants `peer` access to this device's memory, including existing allocations. A stream-ordered pool grants
    /// access separately from the contexts. Repeated calls have no effect.
    ///
    /// # Errors
    /// The driver's.
    pub fn allow_peer(&self, peer: &CudaDevice) -> Result<()> {
        self.source()?.allow(peer.driver()).map_err(lift)
    }

    /// Returns the limit in bytes of reserved managed memory. Fails if `bytes` more do not fit into the device's free
    /// memory.
    fn managed_limit(&self, bytes: usize) -> Result<u64> {
        let MemoryInfo { free, total } = self.info()?;
        if bytes as u64 <= free { Ok(total) } else { Err(self.managed_shortage(bytes, free, total)) }
    }

    fn managed_shortage(&self, bytes: usize, free: u64, total: u64) -> Error {
        let shortage = MemoryShortage { requested: bytes as u64, free: Some(free), total: Some(total) };
        Error::out_of_memory(Place::new(self.device.id(), MemoryKind::Unified), shortage)
    }

    /// Returns what other allocations of this crate need.
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

    /// Frees memory pending free whose work is complete and releases cached memory to the device. Waits for frees as
    /// [`allocate`](Self::allocate) does.
    ///
    /// # Errors
    /// The driver's.
    pub fn release_cached(&self) -> Result<()> {
        self.release_cached_within(
            (!transload_core::mutant!("memory/shortage-wait-is-bounded")).then_some(WAIT_FOR_FREES),
        )
    }

    fn release_cached_within(&self, limit: Option<Duration>) -> Result<()> {
        self.reclaimer.sweep();
        self.trim_lists();
        self.device.end_words().trim(&self.free_thread);
        self.free_thread.drain(limit);
        let trimmed = self.source.get().map_or(Ok(()), DeviceSource::trim);
        trimmed.map_err(|error| lift_in(&self.context, error))
    }

    /// Has the memory for lists freed that no kernel reads. Returns its bytes. [`release_cached`](Self::release_cached) waits for that.
    pub fn trim_lists(&self) -> u64 {
        if transload_core::mutant!("memory/lists-give-way") {
            0
        } else {
            self.device.lists().trim(&self.free_thread)
        }
    }

    /// Returns free and total bytes of device memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn info(&self) -> Result<MemoryInfo> {
        memory_info(&self.context).map_err(lift)
    }

    /// Returns counts of live memory and memory pending free.
    #[must_use]
    pub fn resource_counts(&self) -> ResourceCounts {
        let mut ledger = ResourceCounts::default();
        ledger.allocations = self.counts.allocations();
        ledger.bytes = self.counts.bytes();
        ledger.pending_free = (self.reclaimer.len() + self.device.drops().len()) as u64;
        ledger
    }

    /// Returns the bytes of the device's memory that the manager allocated: in use, pending free or cached for later allocations. Adopted,
    /// unified and host memory does not count.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.counts.device_bytes()
    }

    /// Waits for the operations that memory pending free waits for, frees it, drops the owners of adopted memory, and releases cached
    /// memory. The caller must hold no lock that the destructor of such an owner needs. If memory is freed
    /// only after a device synchronisation, blocks until all work so far is complete, and while a
    /// [`FreeDeferral`](crate::FreeDeferral) exists. Memory of a lost context counts as freed, pinned memory included.
    ///
    /// # Errors
    /// The first error of a failed operation; all memory is freed regardless. `DeviceLost` once for a lost context.
    /// `Busy` if memory stays pending free because of an active stream capture, or of a view or a loan of a registered buffer.
    pub fn drain(&self) -> Result<()> {
        // Owners of adopted memory may use this memory, and free more of it.
        let drops = self.device.drops();
        let owners =
            if transload_core::mutant!("memory/drain-drops-owners") { Ok(()) } else { drops.drain() };
        let outcome = owners.and(self.free_pending());
        // Parked memory keeps fences, which keep adopted streams: their owners come last.
        let last =
            if transload_core::mutant!("memory/drain-drops-last-owners") { Ok(()) } else { drops.drain() };
        let outcome = match outcome.and(last) {
            Err(error) if error.kind() == ErrorKind::DeviceLost => {
                record_loss(&self.context, &error);
                let told = self.loss_reported.swap(true, Ordering::Relaxed);
                if told { Ok(()) } else { Err(check_usable(&self.context).err().unwrap_or(error)) }
            }
            other => other,
        };
        report::emit_deferred();
        outcome
    }
}

impl CudaMemoryManager {
    /// Waits for memory pending free and frees it, and cached memory.
    fn free_pending(&self) -> Result<()> {
        let mut outcome = Ok(());
        loop {
            let postponed = self.free_thread.postponed();
            outcome = outcome.and(self.reclaimer.drain()).and(self.release_cached_within(None));
            // A registration whose buffer is used again is pending free again.
            if self.free_thread.postponed() == postponed
                || transload_core::mutant!("memory/drain-waits-for-postponed")
            {
                return outcome;
            }
        }
    }

    /// Like [`drain`](Self::drain), but waits for device work only: the caller may have to finish the rest. Waits for
    /// frees as [`allocate`](Self::allocate) does.
    pub(crate) fn drain_device_work(&self) -> Result<()> {
        let outcome = self.reclaimer.drain_where(is_device_fence);
        outcome.and(self.release_cached())
    }
}

/// Longest wait for frees where memory is short: the device may be waiting for the calling thread.
pub(crate) const WAIT_FOR_FREES: Duration = Duration::from_secs(2);

/// Returns whether the fence belongs to device work rather than to another backend's host work.
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
