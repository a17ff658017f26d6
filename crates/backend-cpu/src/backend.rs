//! The CPU backend.

use std::{
    fmt,
    mem::{self, needs_drop},
    ptr::NonNull,
    sync::{Arc, atomic::Ordering},
};

use parking_lot::Mutex;
use transload_core::{
    Backend, DeviceId, DeviceInfo, Error, ErrorKind, MemoryInfo, MemoryKind, MemoryShortage,
    OperationSampling, OperationSink, PathCost, Place, Pod, QueueLease, RawBuffer, Reclaimer, ResourceCounts,
    Result, SharedBuffer, Storage, StreamPriority, WorkloadType, events::report, host_memory,
};
use transload_executor::{DropQueue, Executor};

use crate::{
    CpuBackendBuilder, costs, device,
    op_queue::Thresholds,
    pages::Pages,
    queue::MAX_INLINE,
    queue_pool::QueuePool,
    storage::{Counters, counted_storage, owned_storage, owner_of},
};

/// Host memory and queues that copy within it. All methods may be called from any thread.
///
/// Dropping it never waits: work in flight goes on, and leased queues stay usable. Its own threads end when the last
/// lease was dropped, the last operation is complete, and no buffer holds its fence.
pub struct CpuBackend {
    info: DeviceInfo,
    executor: Executor,
    queues: QueuePool,
    counters: Arc<Counters>,
    reclaimer: Arc<Reclaimer>,
    /// Drops owners of wrapped memory.
    drops: DropQueue,
}

impl CpuBackend {
    /// Creates a backend with the default settings.
    ///
    /// # Errors
    /// Those of [`CpuBackendBuilder::build`].
    pub fn new() -> Result<Arc<Self>> {
        Self::builder().build()
    }

    /// Returns a builder, for a backend with other settings.
    pub fn builder() -> CpuBackendBuilder {
        CpuBackendBuilder::default()
    }

    pub(crate) fn with(executor: Executor, thresholds: Thresholds) -> Self {
        Self {
            info: device::info(),
            queues: QueuePool::new(executor.clone(), thresholds),
            drops: DropQueue::new(executor.clone()),
            executor,
            counters: Arc::default(),
            reclaimer: Arc::default(),
        }
    }

    /// Creates a writable buffer that owns a vector's elements, without a copy. An empty vector gives an empty buffer.
    #[must_use]
    pub fn wrap_vec<T: Pod>(&self, mut elements: Vec<T>) -> RawBuffer {
        let len = size_of_val(elements.as_slice());
        // A vector's pointer is never null, and stays the same when the vector is moved.
        let address = NonNull::new(elements.as_mut_ptr()).unwrap_or(NonNull::dangling()).cast();
        // SAFETY: the vector keeps its `len` initialised bytes at this address until it is dropped; there is no
        // other reference to them.
        let storage = unsafe { owned_storage(PodVec(Mutex::new(elements)), address, len, &self.counters) };
        self.wrapped(storage)
    }

    /// Returns the vector that [`wrap_vec`](Self::wrap_vec) took over, without a copy. Never blocks.
    ///
    /// # Errors
    /// The buffer, if it is no vector of `T` or only a part of one, has another handle, work in flight or bytes damaged by a failed
    /// operation, or is [registered](RawBuffer::is_registered) with a driver.
    pub fn unwrap_vec<T: Pod>(buffer: RawBuffer) -> Result<Vec<T>, RawBuffer> {
        buffer.try_take(|storage| Some(mem::take(&mut *owner_of::<PodVec<T>>(storage)?.0.lock())))
    }

    /// Creates a read-only buffer over `owner`'s bytes, such as a mapped file, without a copy. [`RawBuffer::is_writable`] is false.
    /// The owner is dropped once every clone and slice of the buffer was dropped and no operation uses the bytes, by a spare thread
    /// of the executor and under no lock, so its destructor may block; [`Backend::drain`] waits for that.
    #[must_use]
    pub fn wrap_readonly<O: AsRef<[u8]> + Send + Sync + 'static>(&self, owner: O) -> RawBuffer {
        // `as_ref` is called at the final address. Not a box: moving one invalidates references to its content.
        let owner = Arc::new(owner);
        let bytes: &[u8] = (*owner).as_ref();
        let (address, len) = (NonNull::from(bytes).cast(), bytes.len());
        // SAFETY: the owner stays where it is, and gave the slice as one that lives as long as a shared borrow of it could;
        // nothing borrows it mutably before its drop.
        let storage =
            unsafe { counted_storage(owner, address, len, false, &self.counters, self.drops_of::<O>()) };
        self.wrapped(storage)
    }

    /// Creates a buffer over `len` bytes of an owner, which is dropped as that of [`wrap_readonly`](Self::wrap_readonly) is. The owner
    /// `()` frees nothing. The buffer is counted until its owner is dropped.
    ///
    /// # Safety
    /// * `len` bytes at `address` must be initialised, readable and writable until the owner is dropped. Without an owner, until
    ///   every clone and slice of the buffer was dropped and no operation uses them ([`Backend::drain`] waits for that).
    /// * The address must not change when the owner is moved.
    /// * Until then they must not be accessed in conflict with the buffer's views and operations; a second buffer over the
    ///   same bytes is not ordered with this one.
    #[must_use]
    pub unsafe fn wrap_raw<O>(&self, owner: O, address: NonNull<u8>, len: usize) -> RawBuffer
    where
        O: Send + Sync + 'static,
    {
        // SAFETY: the caller's promise.
        let storage =
            unsafe { counted_storage(owner, address, len, true, &self.counters, self.drops_of::<O>()) };
        self.wrapped(storage)
    }

    /// Returns a buffer over wrapped memory. Frees such memory that was dropped in use before, since its owner may never allocate.
    fn wrapped(&self, storage: Box<dyn Storage>) -> RawBuffer {
        self.reclaimer.sweep();
        RawBuffer::new(storage, &self.reclaimer)
    }

    /// Returns the queue that drops owners of a type, unless they have no destructor.
    fn drops_of<O>(&self) -> Option<&DropQueue> {
        needs_drop::<O>().then_some(&self.drops)
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

/// Owns elements until it is dropped, or `unwrap_vec` takes them.
struct PodVec<T>(Mutex<Vec<T>>);

// SAFETY: elements that are plain old data, without a destructor, may be read and freed by any thread.
unsafe impl<T: Pod> Send for PodVec<T> {}
// SAFETY: as above, by one thread at a time.
unsafe impl<T: Pod> Sync for PodVec<T> {}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![self.info.clone()]
    }

    /// Allocates zeroed pageable memory, aligned to 64 bytes, or to 4096 from 64 KiB. On Linux memory from 4 MiB is a
    /// separate mapping, aligned to 2 MiB, with advice to use huge pages.
    fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        device::check(device)?;
        if kind != MemoryKind::Pageable {
            let text = format!(
                "the host itself allocates pageable memory only, not {kind}; name the device, such as cuda:0, that is to allocate it"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if bytes == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "requested 0 bytes; at least 1 is valid"));
        }
        self.reclaimer.sweep();
        if self.info.total_memory.is_some_and(|total| bytes as u64 > total) {
            return Err(self.out_of_memory(bytes));
        }
        let pages = Pages::new(bytes).ok_or_else(|| self.out_of_memory(bytes))?;
        report::emit_deferred();
        let address = pages.address();
        // SAFETY: the pages have `bytes` zeroed bytes at this address until they are dropped.
        let storage = unsafe { owned_storage(pages, address, bytes, &self.counters) };
        Ok(RawBuffer::new(storage, &self.reclaimer))
    }

    /// Returns what [`host_memory`] does: on Linux the least of the machine's memory and the limits of the process' control groups.
    /// [`ErrorKind::Unsupported`] except on Linux and Windows.
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

    fn caster(&self, src: Place, dst: Place) -> Option<DeviceId> {
        self.copier(src, dst)
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
        let registered = self.counters.registered_pending_free.load(Ordering::Acquire);
        ledger.pending_free = (self.reclaimer.len() + self.drops.len()) as u64 + registered;
        ledger.leases = self.queues.leases();
        ledger
    }

    fn attach_sink(&self, sink: &Arc<dyn OperationSink>, sampling: OperationSampling) -> Result<()> {
        self.queues.sink.attach(Arc::clone(sink), sampling)
    }

    fn detach_sink(&self, sink: &Arc<dyn OperationSink>) {
        self.queues.sink.detach(sink);
    }

    /// Fails with [`ErrorKind::Unsupported`] on a thread of an executor, such as in a waker or an owner's `drop` there: it
    /// would wait for itself.
    fn drain(&self) -> Result<()> {
        // Refused before it waits for anything.
        self.executor.drain()?;
        let mut outcome = self.queues.drain();
        // An operation reaches its point before its task drops the buffers, and that task may have been started meanwhile.
        if !transload_core::mutant!("cpu/drain-tasks") {
            outcome = outcome.and(self.executor.drain());
        }
        // Owners may use this memory, and free more of it.
        let outcome = outcome.and(self.drops.drain()).and(self.reclaimer.drain());
        report::emit_deferred();
        outcome
    }

    /// Returns the buffer itself if it is in host memory.
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
