//! The backend: memory and queues of the host, and what is alive of them.

use std::{
    fmt,
    ptr::NonNull,
    sync::{Arc, atomic::Ordering},
};

use transload_core::{
    Backend, DeviceId, DeviceInfo, Error, ErrorKind, MemoryInfo, MemoryKind, MemoryShortage, PathCost, Place,
    QueueLease, RawBuffer, Reclaimer, ResourceCounts, Result, SharedBuffer, StreamPriority, WorkloadType,
    host_memory,
};
use transload_executor::Executor;

use crate::{
    CpuBackendBuilder, costs, device,
    pages::Pages,
    queue::MAX_INLINE,
    queue_pool::QueuePool,
    storage::{Counters, counted_storage},
};

/// Host memory and queues that copy within it. All methods may be called from any thread.
///
/// Dropping it never waits: work in flight goes on, leased queues stay usable, and threads of its own end when the last
/// lease was dropped, the last operation is complete, and no buffer keeps the fence of one.
pub struct CpuBackend {
    info: DeviceInfo,
    executor: Executor,
    queues: QueuePool,
    counters: Arc<Counters>,
    reclaimer: Arc<Reclaimer>,
}

impl CpuBackend {
    /// A backend with the default settings.
    ///
    /// # Errors
    /// As for [`CpuBackendBuilder::build`].
    pub fn new() -> Result<Arc<Self>> {
        Self::builder().build()
    }

    /// A backend with other settings.
    pub fn builder() -> CpuBackendBuilder {
        CpuBackendBuilder::default()
    }

    pub(crate) fn with(executor: Executor, parallel_from: usize) -> Self {
        Self {
            info: device::info(),
            queues: QueuePool::new(executor.clone(), parallel_from),
            executor,
            counters: Arc::default(),
            reclaimer: Arc::default(),
        }
    }

    /// A buffer over a vector's bytes, which it owns from now on. Writable; nothing is copied. A vector without bytes
    /// gives a buffer without bytes.
    #[must_use]
    pub fn wrap_vec(&self, mut bytes: Vec<u8>) -> RawBuffer {
        let len = bytes.len();
        // A vector's pointer is never null, and stays the same when the vector is moved.
        let address = NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling());
        // SAFETY: the vector keeps its `len` initialised bytes at this address until it is dropped; nobody refers to it.
        let storage = unsafe { counted_storage(bytes, address, len, true, &self.counters) };
        RawBuffer::new(storage, &self.reclaimer)
    }

    /// A buffer over bytes that `owner` gives, such as a mapped file, which lives on until no operation uses them. Nothing
    /// is copied, and nothing can be copied into it: [`RawBuffer::is_writable`] is false.
    #[must_use]
    pub fn wrap_readonly(&self, owner: impl AsRef<[u8]> + Send + Sync + 'static) -> RawBuffer {
        // Asked in its final place. Not a box, which may not be moved while its content is referred to.
        let owner = Arc::new(owner);
        let bytes: &[u8] = (*owner).as_ref();
        let (address, len) = (NonNull::from(bytes).cast(), bytes.len());
        // SAFETY: the owner stays where it is, and gave the slice as one that lives as long as a shared borrow of it could;
        // nothing borrows it mutably before its drop.
        let storage = unsafe { counted_storage(owner, address, len, false, &self.counters) };
        RawBuffer::new(storage, &self.reclaimer)
    }

    /// A buffer of `len` bytes over memory that stays somebody else's: it is never freed by the buffer. It counts in the
    /// ledger while any operation may use it.
    ///
    /// # Safety
    /// * `len` bytes at `address` must be initialised, readable and writable until every clone and slice of the buffer is
    ///   dropped and no operation uses them any more ([`Backend::drain`] waits for that).
    /// * Until then nobody may access them in conflict with the buffer's views and operations; a second buffer over the
    ///   same bytes is not ordered with this one.
    #[must_use]
    pub unsafe fn wrap_raw(&self, address: NonNull<u8>, len: usize) -> RawBuffer {
        // SAFETY: the caller's promise.
        let storage = unsafe { counted_storage((), address, len, true, &self.counters) };
        RawBuffer::new(storage, &self.reclaimer)
    }

    fn out_of_memory(&self, bytes: usize) -> Error {
        let now = host_memory().ok();
        let shortage = MemoryShortage {
            requested: bytes as u64,
            free: now.map(|memory| memory.free),
            total: now.map(|memory| memory.total).or(self.info.total_memory),
        };
        Error::out_of_memory(Place::new(DeviceId::Cpu, MemoryKind::Pageable), shortage)
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![self.info.clone()]
    }

    /// Zeroed pageable memory, aligned to 64 bytes, from 64 KiB on to 4096. On Linux memory from 4 MiB on is mapped by
    /// itself, on 2 MiB boundaries, with advice to use huge pages.
    fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        device::check(device)?;
        if kind != MemoryKind::Pageable {
            let text = format!(
                "the cpu backend allocates pageable memory only, not {kind}; ask a device's backend for pinned and mapped"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if bytes == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "0 bytes were asked for; valid is 1 or more"));
        }
        self.reclaimer.sweep();
        if self.info.total_memory.is_some_and(|total| bytes as u64 > total) {
            return Err(self.out_of_memory(bytes));
        }
        let pages = Pages::new(bytes).ok_or_else(|| self.out_of_memory(bytes))?;
        let address = pages.address();
        // SAFETY: the pages have so many zeroed bytes at this address until they are dropped.
        let storage = unsafe { counted_storage(pages, address, bytes, true, &self.counters) };
        Ok(RawBuffer::new(storage, &self.reclaimer))
    }

    /// The kernel's `MemAvailable` and `MemTotal`; [`ErrorKind::Unsupported`] elsewhere than on Linux.
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        device::check(device)?;
        host_memory()
    }

    fn lease_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        _workload: WorkloadType,
    ) -> Result<QueueLease> {
        device::check(device)?;
        Ok(QueueLease::new(self.queues.lease(priority)))
    }

    fn copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        (costs::is_reachable(src) && costs::is_reachable(dst)).then_some(DeviceId::Cpu)
    }

    fn host_copy_limit(&self, src: Place, dst: Place) -> usize {
        if self.copier(src, dst).is_some() { MAX_INLINE } else { 0 }
    }

    fn default_costs(&self) -> Vec<PathCost> {
        costs::default_costs()
    }

    fn resource_counts(&self) -> ResourceCounts {
        let mut ledger = ResourceCounts::default();
        ledger.allocations = self.counters.allocations.load(Ordering::Acquire);
        ledger.bytes = self.counters.bytes.load(Ordering::Acquire);
        ledger.parked = self.reclaimer.len() as u64;
        ledger.leases = self.queues.leases();
        ledger
    }

    /// Fails with [`ErrorKind::Unsupported`] on a thread of an executor, such as in a waker or an owner's `drop` there: it
    /// would wait for itself.
    fn drain(&self) -> Result<()> {
        if !transload_core::mutant!("cpu/drain-tasks") {
            self.executor.drain()?;
        }
        self.queues.drain().and(self.reclaimer.drain())
    }

    /// The buffer itself where it is the host's.
    fn share(&self, buffer: &RawBuffer, device: DeviceId) -> Result<SharedBuffer> {
        device::check(device)?;
        if costs::is_reachable(buffer.place()) {
            return Ok(SharedBuffer::in_place(buffer));
        }
        let text =
            format!("the cpu backend cannot share {} memory; copy it to pageable memory", buffer.place());
        Err(Error::new(ErrorKind::Unsupported, text))
    }
}

impl fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuBackend").field("ledger", &self.resource_counts()).finish_non_exhaustive()
    }
}
