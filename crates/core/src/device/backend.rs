//! A family of devices: its memory, its queues, and what it knows of its paths.

use std::{fmt, sync::Arc};

use crate::{
    DeviceId, Error, ErrorKind, Fence, MemoryKind, Operation, PathCost, Place, QueueLease, RawBuffer,
    Recording, Result, StreamPriority, WorkloadType,
};

/// A device as a backend presents it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Which.
    pub id: DeviceId,
    /// Its name for people.
    pub name: String,
    /// Bytes of memory in all, where known.
    pub total_memory: Option<u64>,
    /// The kinds of memory that [`Backend::allocate`] gives for it.
    pub kinds: Vec<MemoryKind>,
    /// Whether the host may use the device's unified memory while the device works.
    pub concurrent_managed_access: bool,
    /// An identity that outlives the process, where there is one: part of a calibration's key.
    pub uuid: Option<[u8; 16]>,
    /// The driver's version and origin, for people.
    pub driver: String,
    /// Whether a software driver plays the device.
    pub simulated: bool,
}

impl DeviceInfo {
    /// A device with a name and nothing else known.
    #[must_use]
    pub fn new(id: DeviceId, name: impl Into<String>) -> Self {
        Self {
            id,
            name: name.into(),
            total_memory: None,
            kinds: Vec::new(),
            concurrent_managed_access: false,
            uuid: None,
            driver: String::new(),
            simulated: false,
        }
    }
}

/// Bytes of a device's memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free.
    pub free: u64,
    /// In all.
    pub total: u64,
}

/// What a backend keeps alive. Empty after every handle was dropped and [`Backend::drain`] returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceCounts {
    /// Allocations that are alive, also those that wait for their last operation.
    pub allocations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of them were dropped and wait.
    pub parked: u64,
    /// Leased queues.
    pub leases: u64,
}

impl ResourceCounts {
    /// Whether nothing is alive.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for ResourceCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { allocations, bytes, parked, leases } = self;
        write!(f, "{allocations} allocations of {bytes} bytes ({parked} parked), {leases} leased queues")
    }
}

/// Advice on where unified memory should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryAdvice {
    /// Mostly read: readers may keep copies.
    SetReadMostly,
    /// Takes [`SetReadMostly`](Self::SetReadMostly) back.
    UnsetReadMostly,
    /// Should stay on the device.
    SetPreferredLocation(DeviceId),
    /// Takes [`SetPreferredLocation`](Self::SetPreferredLocation) back.
    UnsetPreferredLocation,
    /// The device will use it and should have it mapped.
    SetAccessedBy(DeviceId),
    /// Takes [`SetAccessedBy`](Self::SetAccessedBy) back.
    UnsetAccessedBy(DeviceId),
}

/// Whether one device reaches another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    /// It does not.
    Unavailable,
    /// It could; not yet enabled.
    Available,
    /// It does.
    Enabled,
}

/// A buffer that another device can use, and whether bytes had to be moved for it.
#[derive(Clone, Debug)]
pub struct SharedBuffer {
    /// The buffer.
    pub buffer: RawBuffer,
    /// Whether it is a copy.
    pub copied: bool,
    /// The end of the copy, if it is under way. Whatever uses the buffer comes after it; wait for it to learn whether the
    /// bytes arrived.
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
    Err(Error::new(ErrorKind::Unsupported, format!("the {} backend has no {what}", backend.name())))
}

/// A family of devices. All methods may be called from any thread.
pub trait Backend: Send + Sync + 'static {
    /// The family's name, for example `cuda`.
    fn name(&self) -> &'static str;

    /// The devices, in ordinal order.
    fn devices(&self) -> Vec<DeviceInfo>;

    /// Allocates `bytes` (at least 1) of a kind of memory for a device. Host memory that this backend makes for its
    /// device (pinned, mapped) has the place of the host.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`], [`ErrorKind::Unsupported`] for a kind it does not have, [`ErrorKind::InvalidArgument`]
    /// for 0 bytes, [`ErrorKind::OutOfMemory`].
    fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer>;

    /// Free and total bytes of a device's memory.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`], or the driver's.
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo>;

    /// Leases a queue of a device for work of a priority and kind.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`], or the driver's.
    fn lease_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        workload: WorkloadType,
    ) -> Result<QueueLease>;

    /// Like [`lease_queue`](Self::lease_queue), but a queue that [`lease_queue`](Self::lease_queue) never gives, for work that
    /// must not wait for what a user enqueues by the queue's handle. A backend without such handles need not tell them apart.
    ///
    /// # Errors
    /// As for `lease_queue`.
    fn lease_reserved_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        workload: WorkloadType,
    ) -> Result<QueueLease> {
        self.lease_queue(device, priority, workload)
    }

    /// The device whose queues copy directly from `src` to `dst`, if any do.
    fn copier(&self, src: Place, dst: Place) -> Option<DeviceId>;

    /// The device whose queues do [`Operation::CopyInPlace`](crate::Operation::CopyInPlace) from `src` to `dst`, if any.
    /// Of the host's memory that is buffers with a [device address](RawBuffer::device_address); others are refused.
    fn in_place_copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        let _ = (src, dst);
        None
    }

    /// Up to how many bytes [`copy_on_host`](crate::copy_on_host) is quicker than the backend's queue from `src` to `dst`, both of
    /// which the host can address; 0 where it is not.
    fn host_copy_limit(&self, src: Place, dst: Place) -> usize {
        let _ = (src, dst);
        0
    }

    /// Makes the device's queues ready for [`Operation::CopyInPlace`](crate::Operation::CopyInPlace): loads a kernel, say.
    /// Called before each such copy, so it is quick once done.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where they cannot do it after all; the driver's.
    fn prepare_in_place(&self, device: DeviceId) -> Result<()> {
        let _ = device;
        Ok(())
    }

    /// Costs to choose by before anything was measured.
    fn default_costs(&self) -> Vec<PathCost>;

    /// What is alive.
    fn resource_counts(&self) -> ResourceCounts;

    /// Waits for all work in flight and frees what was parked.
    ///
    /// # Errors
    /// The first error of work that failed.
    fn drain(&self) -> Result<()>;

    /// Called by a thread of the library's own before it uses this backend's queues; the answer is kept while it does.
    /// CUDA's backend sees to it here that such threads disturb nobody's graph capture.
    fn attach_thread(&self) -> Option<Box<dyn std::any::Any>> {
        None
    }

    /// Pins host memory that exists, so that copy engines reach it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where there is no such thing.
    fn register(&self, buffer: &RawBuffer) -> Result<RawBuffer> {
        let _ = buffer;
        unsupported(self, "registration of host memory")
    }

    /// Advises on unified memory.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where there is no such thing.
    fn advise(&self, buffer: &RawBuffer, advice: MemoryAdvice) -> Result<()> {
        let _ = (buffer, advice);
        unsupported(self, "memory advice")
    }

    /// Whether `device` reaches the memory of `peer`.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownDevice`], or the driver's.
    fn peer_access(&self, device: DeviceId, peer: DeviceId) -> Result<PeerAccess> {
        let _ = (device, peer);
        Ok(PeerAccess::Unavailable)
    }

    /// Lets `device` reach the memory of `peer`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where it cannot.
    fn enable_peer_access(&self, device: DeviceId, peer: DeviceId) -> Result<()> {
        let _ = (device, peer);
        unsupported(self, "peer access")
    }

    /// Prepares operations for being enqueued as a whole by [`Operation::Replay`](crate::Operation::Replay). Nothing is enqueued
    /// and no data is touched. Operations in conflict are done in the order given, others in any.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where there is no such thing, or for an operation that cannot be recorded, with the reason;
    /// [`ErrorKind::InvalidArgument`] for no operation at all; those of [`Operation::validate`](crate::Operation::validate).
    fn record(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        operations: &[Operation<'_>],
    ) -> Result<Arc<dyn Recording>> {
        let _ = (device, priority, operations);
        unsupported(self, "recording of operations")
    }

    /// A buffer with the bytes of `buffer` that `device` can use, without moving them if it can be done.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where there is no such thing.
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
