//! Backends: a family of devices with its memory, queues and path costs.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    BufferId, DeviceId, EngineRecording, Error, ErrorKind, Fence, ListCost, MemoryKind, Operation,
    OperationSampling, OperationSink, PathCost, Place, QueueLease, RawBuffer, Recording, Result,
    StagingHints, StreamPriority, WorkloadType,
};

/// The description of a device by its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Device identifier.
    pub id: DeviceId,
    /// Name for display.
    pub name: String,
    /// Total bytes of memory, if known.
    #[cfg_attr(feature = "serde", serde(rename = "total_bytes"))]
    pub total_memory: Option<u64>,
    /// Most bytes of one allocation, of any kind, if the driver has such a limit.
    #[cfg_attr(feature = "serde", serde(rename = "largest_allocation_bytes", default))]
    pub largest_allocation: Option<u64>,
    /// The kinds of memory that [`Backend::allocate`] offers for it.
    pub kinds: Vec<MemoryKind>,
    /// Whether the host may use the device's unified memory while the device works.
    pub concurrent_managed_access: bool,
    /// Identity that outlives the process, if any: part of a calibration's key.
    #[cfg_attr(feature = "serde", serde(with = "super::serde_forms::uuid", default))]
    pub uuid: Option<[u8; 16]>,
    /// Version and origin of the driver, for display.
    pub driver: String,
    /// Whether the device is simulated by a software driver.
    pub simulated: bool,
}

impl DeviceInfo {
    /// Creates a description with an id and a name; everything else is unset.
    #[must_use]
    pub fn new(id: DeviceId, name: impl Into<String>) -> Self {
        Self {
            id,
            name: name.into(),
            total_memory: None,
            largest_allocation: None,
            kinds: Vec::new(),
            concurrent_managed_access: false,
            uuid: None,
            driver: String::new(),
            simulated: false,
        }
    }

    /// Checks that a size is within the [largest allocation](Self::largest_allocation).
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`] with the limit.
    pub fn check_allocation(&self, bytes: u64) -> Result<()> {
        match self.largest_allocation {
            Some(limit) if bytes > limit => {
                let text = format!("{} allocates at most {limit} bytes at once, not {bytes}", self.id);
                Err(Error::new(ErrorKind::OutOfRange, text))
            }
            _ => Ok(()),
        }
    }
}

/// A snapshot of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryInfo {
    /// Free bytes.
    #[cfg_attr(feature = "serde", serde(rename = "free_bytes"))]
    pub free: u64,
    /// Total bytes.
    #[cfg_attr(feature = "serde", serde(rename = "total_bytes"))]
    pub total: u64,
}

/// What a backend keeps alive. All zero after every handle was dropped and [`Backend::drain`] returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ResourceCounts {
    /// Allocations: those in use, those that are pending free, and those cached for reuse.
    pub allocations: u64,
    /// Bytes of the allocations.
    pub bytes: u64,
    /// The part of `bytes` that is in no use and cached for later allocations. [`Backend::drain`] frees it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cached_bytes: u64,
    /// Allocations that were dropped and are freed once their last operation is complete.
    pub pending_free: u64,
    /// Leased queues.
    pub leases: u64,
}

impl ResourceCounts {
    /// Returns whether nothing is alive.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for ResourceCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { allocations, bytes, cached_bytes, pending_free, leases } = *self;
        let plural = |number| if number == 1 { "" } else { "s" };
        write!(f, "{allocations} allocation{} of {bytes} bytes", plural(allocations))?;
        if cached_bytes > 0 {
            write!(f, ", {cached_bytes} of them cached for reuse")?;
        }
        if pending_free > 0 {
            write!(f, ", {pending_free} allocation{} pending free", plural(pending_free))?;
        }
        write!(f, ", {leases} leased queue{}", plural(leases))
    }
}

/// Advice on the placement of unified memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryAdvice {
    /// Mostly read: readers may keep copies.
    SetReadMostly,
    /// Undoes [`SetReadMostly`](Self::SetReadMostly).
    UnsetReadMostly,
    /// Should stay on the device.
    SetPreferredLocation(DeviceId),
    /// Undoes [`SetPreferredLocation`](Self::SetPreferredLocation).
    UnsetPreferredLocation,
    /// The device will use it and should have it mapped.
    SetAccessedBy(DeviceId),
    /// Undoes [`SetAccessedBy`](Self::SetAccessedBy).
    UnsetAccessedBy(DeviceId),
}

/// Whether a device can access another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum PeerAccess {
    /// It cannot.
    Unavailable,
    /// It can once enabled.
    Available,
    /// It can.
    Enabled,
}

/// A buffer that another device can use, and whether it is a copy.
#[derive(Clone, Debug)]
pub struct SharedBuffer {
    /// The buffer.
    pub buffer: RawBuffer,
    /// Whether its bytes were copied.
    pub copied: bool,
    /// The fence of the copy, if it is in flight. Users of the buffer are ordered after it; wait for it to
    /// learn whether the copy succeeded.
    pub arrival: Option<Fence>,
}

impl SharedBuffer {
    /// Returns the buffer itself, which the device can use as it is.
    #[must_use]
    pub fn in_place(buffer: &RawBuffer) -> Self {
        Self { buffer: buffer.clone(), copied: false, arrival: None }
    }
}

fn unsupported<T>(backend: &(impl Backend + ?Sized), what: &str) -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, format!("the {} backend does not support {what}", backend.name())))
}

/// A holder of pinned memory of a backend, part of which it keeps for later use.
pub trait PinnedCache: Send + Sync {
    /// Frees the memory that nothing uses now. Returns how many bytes. Does not wait for work in flight.
    fn release_unused(&self) -> u64;

    /// Returns how many bytes nothing used since the last call.
    fn unused_bytes(&self) -> u64;
}

/// A buffer of pinned memory, and how often it was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPinned {
    /// The buffer's id.
    pub buffer: BufferId,
    /// Its bytes.
    pub bytes: u64,
    /// How often operations and host views used it so far.
    pub uses: u64,
    /// Whether an operation, a view or a loan uses it now.
    pub is_in_use: bool,
}

/// A family of devices. All methods may be called from any thread.
pub trait Backend: Any + Send + Sync {
    /// Returns the family's name, for example `cuda`.
    fn name(&self) -> &'static str;

    /// Returns the devices, in ordinal order.
    fn devices(&self) -> Vec<DeviceInfo>;

    /// Allocates `bytes` (at least 1) of a kind of memory for a device. Host memory for the device (pinned,
    /// mapped) has the host as its place.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`], [`ErrorKind::Unsupported`] for a kind it does not have,
    /// [`ErrorKind::InvalidArgument`] for 0 bytes, [`ErrorKind::OutOfRange`] beyond the device's
    /// [largest allocation](DeviceInfo::largest_allocation), [`ErrorKind::OutOfMemory`].
    fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer>;

    /// Returns free and total bytes of a device's memory.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`], or the driver's.
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo>;

    /// Leases a queue of a device for work of a priority and type.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`], or the driver's.
    fn lease_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        workload: WorkloadType,
    ) -> Result<QueueLease>;

    /// Like [`lease_queue`](Self::lease_queue), but leases a queue that `lease_queue` never returns, for work
    /// that must not wait for what users enqueue through a queue's raw handle. A backend without such handles
    /// need not distinguish them.
    ///
    /// # Errors
    /// Like `lease_queue`.
    fn lease_reserved_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        workload: WorkloadType,
    ) -> Result<QueueLease> {
        self.lease_queue(device, priority, workload)
    }

    /// Returns how transfers between the host and a device are divided. Calls no driver.
    fn staging_hints(&self, device: DeviceId) -> StagingHints {
        let _ = device;
        StagingHints::default()
    }

    /// Like [`lease_queue`](Self::lease_queue), or [`lease_reserved_queue`](Self::lease_reserved_queue) if `reserved`, for a task,
    /// whose thread must not be kept: takes some microseconds, and returns `None` if a queue should be created first, for which the
    /// caller leases one on a thread that may be blocked. By default the lease of the other two methods.
    ///
    /// # Errors
    /// Like `lease_queue`.
    fn lease_existing_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        workload: WorkloadType,
        reserved: bool,
    ) -> Result<Option<QueueLease>> {
        let lease = if reserved { Self::lease_reserved_queue } else { Self::lease_queue };
        lease(self, device, priority, workload).map(Some)
    }

    /// Returns the device whose queues copy directly from `src` to `dst`, if any.
    fn copier(&self, src: Place, dst: Place) -> Option<DeviceId>;

    /// Returns whether a queue may refuse to copy some buffers of a place, or some ranges: then [`check_copy`](Self::check_copy) is called
    /// for each copy from or to it. Called once for each path of places. `false` by default.
    fn checks_copies(&self, place: Place) -> bool {
        let _ = place;
        false
    }

    /// Checks that the queues of the [`copier`](Self::copier) copy these ranges, before a way to copy them is chosen. `None` is
    /// staging memory of the host; `Some` may be of any device. Calls no driver, and claims nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with what would be valid.
    fn check_copy(&self, src: Option<&RawBuffer>, dst: Option<&RawBuffer>) -> Result<()> {
        let _ = (src, dst);
        Ok(())
    }

    /// Returns the device whose queues do [`Operation::CopyInPlace`](crate::Operation::CopyInPlace) from
    /// `src` to `dst`, if any. Host memory must have a [device address](RawBuffer::device_address); other
    /// buffers are refused. If the backend's device memory is the host's own, it may be [`DeviceId::Cpu`]: the
    /// queues of the cpu backend, for buffers with a [mapped address](RawBuffer::mapped_address).
    fn in_place_copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        let _ = (src, dst);
        None
    }

    /// Returns the device whose queues do [`Operation::Cast`](crate::Operation::Cast) from `src` to `dst`, if any. It needs
    /// [`prepare_in_place`](Self::prepare_in_place), like a copy in place.
    fn caster(&self, src: Place, dst: Place) -> Option<DeviceId> {
        let _ = (src, dst);
        None
    }

    /// Returns the number of bytes up to which [`copy_on_host`](crate::copy_on_host) is faster than the
    /// backend's queue from `src` to `dst`, both of which the host can address; 0 if it never is.
    fn host_copy_limit(&self, src: Place, dst: Place) -> usize {
        let _ = (src, dst);
        0
    }

    /// Prepares the device's queues for [`Operation::CopyInPlace`](crate::Operation::CopyInPlace), by loading
    /// a kernel for example. Called before each such copy, so it must be fast once prepared.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if they cannot do it after all; the driver's.
    fn prepare_in_place(&self, device: DeviceId) -> Result<()> {
        let _ = device;
        Ok(())
    }

    /// Returns whether [`prepare_in_place`](Self::prepare_in_place) has nothing left to do that might take long. Does not block.
    fn is_prepared_in_place(&self, device: DeviceId) -> bool {
        let _ = device;
        true
    }

    /// Returns the costs to use before anything was measured.
    fn default_costs(&self) -> Vec<PathCost>;

    /// Returns the costs of lists of copies to use before anything was measured. Lists without a cost go by copy engine.
    fn default_list_costs(&self) -> Vec<ListCost> {
        Vec::new()
    }

    /// Returns the counts of what is alive.
    fn resource_counts(&self) -> ResourceCounts;

    /// Returns the bytes of a device's own memory that the backend allocated: in use, pending free, or cached for later allocations, unless the
    /// cache is of host memory too. Adopted, unified and host memory does not count. `None`, the default, if they are not counted apart.
    /// Calls no driver.
    fn device_bytes(&self, device: DeviceId) -> Option<u64> {
        let _ = device;
        None
    }

    /// Waits for all work in flight and frees dropped and cached memory. Also waits for destructors of owners that other code handed over with
    /// its memory or streams: the caller must hold no lock that they need, such as Python's GIL.
    ///
    /// # Errors
    /// The first error of work that failed.
    fn drain(&self) -> Result<()>;

    /// Called by the library's own threads before they use this backend's queues; they keep the returned
    /// value meanwhile. The CUDA backend sets the threads' capture mode here, so that their calls do not
    /// invalidate stream captures.
    fn attach_thread(&self) -> Option<Box<dyn std::any::Any>> {
        None
    }

    /// Attaches a sink to all devices but the [unprofiled](Self::unprofiled_devices): operations that their queues, present and future ones, enqueue
    /// from now on are counted, and some are timed and passed to it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if no device can have one; [`ErrorKind::Busy`] if a device has a sink. Then no device has this one.
    fn attach_sink(&self, sink: &Arc<dyn OperationSink>, sampling: OperationSampling) -> Result<()> {
        let _ = (sink, sampling);
        unsupported(self, "profiling of its operations")
    }

    /// Returns the devices that [`attach_sink`](Self::attach_sink) leaves out, with the reason; nothing where it is refused.
    fn unprofiled_devices(&self) -> Vec<(DeviceId, Error)> {
        Vec::new()
    }

    /// Detaches this sink from all devices that have it.
    fn detach_sink(&self, sink: &Arc<dyn OperationSink>) {
        let _ = sink;
    }

    /// Begins to record what the engines of all devices do, by the driver's own records; until the result is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the backend cannot, with the cause.
    fn record_engines(&self) -> Result<Box<dyn EngineRecording>> {
        unsupported(self, "records of engines")
    }

    /// Returns the bytes of pinned memory that nothing uses, and that are kept for later allocations; of the [caches](Self::add_pinned_cache) those
    /// that nothing used since the last call.
    fn idle_pinned_bytes(&self) -> u64 {
        0
    }

    /// Returns the large buffers of pinned memory that the backend allocated and that are alive, as far as it knows them.
    fn held_pinned(&self) -> Vec<HeldPinned> {
        Vec::new()
    }

    /// Adds a cache to those that release unused memory before an allocation or a registration fails for lack of pinned memory. A
    /// backend that limits pinned memory overrides this; by default caches are not asked.
    fn add_pinned_cache(&self, cache: Weak<dyn PinnedCache>) {
        let _ = cache;
    }

    /// Pins existing host memory for copy engines.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the backend cannot.
    fn register(&self, buffer: &RawBuffer) -> Result<RawBuffer> {
        let _ = buffer;
        unsupported(self, "registration of host memory")
    }

    /// Pins the whole allocation of a buffer for the copy engines of this backend's family, until it is freed. The buffer stays what it is, and may be used
    /// meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the backend cannot, or the memory has no [slot](RawBuffer::registration_slot);
    /// [`ErrorKind::Busy`] if part of it is registered already; [`ErrorKind::OutOfMemory`] beyond a limit; the driver's.
    fn register_until_freed(&self, buffer: &RawBuffer) -> Result<()> {
        let _ = buffer;
        unsupported(self, "registration of host memory")
    }

    /// Returns about how long [`register_until_freed`](Self::register_until_freed) and the end of the registration take for so many
    /// bytes; `None`, the default, if the backend should not be asked for it.
    fn registration_time(&self, bytes: u64) -> Option<Duration> {
        let _ = bytes;
        None
    }

    /// Advises on the placement of unified memory.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the backend cannot.
    fn advise(&self, buffer: &RawBuffer, advice: MemoryAdvice) -> Result<()> {
        let _ = (buffer, advice);
        unsupported(self, "memory advice")
    }

    /// Returns whether `device` can access the memory of `peer`.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`], or the driver's.
    fn peer_access(&self, device: DeviceId, peer: DeviceId) -> Result<PeerAccess> {
        let _ = (device, peer);
        Ok(PeerAccess::Unavailable)
    }

    /// Enables access of `device` to the memory of `peer`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if it cannot.
    fn enable_peer_access(&self, device: DeviceId, peer: DeviceId) -> Result<()> {
        let _ = (device, peer);
        unsupported(self, "peer access")
    }

    /// Prepares operations to be enqueued as a whole by [`Operation::Replay`](crate::Operation::Replay).
    /// Nothing is enqueued and no data is touched. Conflicting operations run in the order given, others in
    /// any.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the backend cannot, or for an operation that cannot be recorded, with
    /// the reason; [`ErrorKind::InvalidArgument`] for an empty list; those of
    /// [`Operation::validate`](crate::Operation::validate).
    fn record(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        operations: &[Operation<'_>],
    ) -> Result<Arc<dyn Recording>> {
        let _ = (device, priority, operations);
        unsupported(self, "recording of operations")
    }

    /// Returns a buffer with the bytes of `buffer` that `device` can use, without a copy if possible.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the backend cannot.
    fn share(&self, buffer: &RawBuffer, device: DeviceId) -> Result<SharedBuffer> {
        let _ = (buffer, device);
        unsupported(self, "sharing")
    }
}

impl fmt::Debug for dyn Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backend({})", self.name())
    }
}
