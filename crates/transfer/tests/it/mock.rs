//! A backend in memory. Its operations run when waited for, and fail on demand.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use transload_core::{
    Backend, DeviceId, DeviceInfo, Error, ErrorKind, Fence, MemoryInfo, MemoryKind, Operation, PathCost,
    PeerAccess, Place, Queue, QueueLease, RawBuffer, Reclaimer, ResourceCounts, Result, StagingHints,
    StreamPriority, Timing, WorkloadType, events, submit,
};

pub(crate) use crate::mock_memory::{bytes, read_only, set_bytes};
use crate::{
    mock_memory::{Memory, Shared},
    mock_queue::MockQueue,
};

pub(crate) const MOCK: DeviceId = DeviceId::Other("mock", 0);

pub(crate) struct MockBackend {
    devices: Vec<DeviceInfo>,
    costs: Vec<PathCost>,
    copies: fn(Place, Place) -> bool,
    peers: bool,
    enables_peers: bool,
    shares: bool,
    in_place: Option<DeviceId>,
    staging: StagingHints,
    free: u64,
    pub(crate) shared: Arc<Shared>,
    reclaimer: Arc<Reclaimer>,
    queues: Vec<Arc<MockQueue>>,
    next: AtomicU64,
    own: Weak<Self>,
    handles: AtomicU64,
}

/// Settings of a mock backend.
pub(crate) struct Mock {
    pub(crate) devices: Vec<(DeviceId, Vec<MemoryKind>)>,
    pub(crate) costs: Vec<PathCost>,
    pub(crate) copies: fn(Place, Place) -> bool,
    pub(crate) peers: bool,
    pub(crate) enables_peers: bool,
    pub(crate) simulated: bool,
    pub(crate) concurrent_managed_access: bool,
    /// Whether it shares by a copy that it does not wait for.
    pub(crate) shares: bool,
    /// The device that copies in place, wherever it copies.
    pub(crate) in_place: Option<DeviceId>,
    pub(crate) staging: StagingHints,
    pub(crate) total_of_unknown_free: Option<u64>,
    /// Of 1 GiB.
    pub(crate) free: u64,
    pub(crate) largest_allocation: Option<u64>,
}

impl Default for Mock {
    fn default() -> Self {
        Self {
            devices: vec![
                (DeviceId::Cpu, vec![MemoryKind::Pageable]),
                (MOCK, vec![MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Unified]),
            ],
            costs: Vec::new(),
            copies: |_, _| true,
            peers: false,
            enables_peers: false,
            simulated: false,
            concurrent_managed_access: false,
            shares: false,
            in_place: None,
            staging: StagingHints::default(),
            total_of_unknown_free: None,
            free: 1 << 30,
            largest_allocation: None,
        }
    }
}

impl Mock {
    pub(crate) fn build(self) -> Arc<MockBackend> {
        let shared = Arc::new(Shared::default());
        let device = |(id, kinds): (DeviceId, Vec<MemoryKind>)| {
            let mut info = DeviceInfo::new(id, "mock");
            info.kinds = kinds;
            info.simulated = self.simulated;
            info.total_memory = self.total_of_unknown_free;
            info.largest_allocation = self.largest_allocation;
            info.concurrent_managed_access = self.concurrent_managed_access;
            info
        };
        let devices: Vec<_> = self.devices.into_iter().map(device).collect();
        let queues =
            devices.iter().flat_map(|info| (0..3).map(|_| MockQueue::new(info.id, &shared))).collect();
        Arc::new_cyclic(|own| MockBackend {
            own: Weak::clone(own),
            handles: AtomicU64::new(0),
            devices,
            costs: self.costs,
            copies: self.copies,
            peers: self.peers,
            enables_peers: self.enables_peers,
            shares: self.shares,
            in_place: self.in_place,
            staging: self.staging,
            free: self.free,
            shared,
            reclaimer: Arc::new(Reclaimer::new()),
            queues,
            next: AtomicU64::new(0),
        })
    }
}

impl MockBackend {
    /// Makes the next operation that runs fail.
    pub(crate) fn fail_next(&self, kind: ErrorKind) {
        self.shared.failures.lock().push_back(Some(kind));
    }

    pub(crate) fn pass_next(&self) {
        self.shared.failures.lock().push_back(None);
    }

    pub(crate) fn refuse_next(&self, kind: ErrorKind) {
        self.shared.refusals.lock().push_back(kind);
    }

    /// The next call of `enqueue` returns a partial error.
    pub(crate) fn break_next(&self) {
        self.shared.breaks.store(true, Ordering::Relaxed);
    }

    /// After `succeed` more pinned allocations the next `fail` ones fail, each once `meet` threads are in one, or after 2 ms.
    pub(crate) fn fail_pinned(&self, succeed: u64, fail: u64, meet: u64) {
        let mut pinned = self.shared.pinned.lock();
        (pinned.succeed, pinned.fail, pinned.meet) = (succeed, fail, meet);
    }

    fn pin(&self) -> Result<()> {
        events::report::emit_deferred();
        let mut pinned = self.shared.pinned.lock();
        if pinned.fail == 0 || pinned.succeed > 0 {
            pinned.succeed = pinned.succeed.saturating_sub(1);
            return Ok(());
        }
        pinned.fail -= 1;
        pinned.inside += 1;
        self.shared.pinning.notify_all();
        let moment = std::time::Instant::now() + Duration::from_millis(2);
        while pinned.inside < pinned.meet {
            if self.shared.pinning.wait_until(&mut pinned, moment).timed_out() {
                break;
            }
        }
        pinned.inside -= 1;
        Err(Error::new(ErrorKind::OutOfMemory, "planted shortage of pinned memory"))
    }

    /// From now on operations run when they are enqueued.
    pub(crate) fn perform_at_once(&self) {
        self.shared.at_once.store(true, Ordering::SeqCst);
    }

    /// From now on every operation of the device's queues fails, and all are complete.
    pub(crate) fn lose(&self, device: DeviceId) {
        self.shared.lost.lock().push(device);
        self.shared.in_use.lock().retain(|(user, _)| *user != device);
    }

    /// From now on copies from a device to the host wait for a fence.
    pub(crate) fn close_downloads(&self, until: Fence) {
        *self.shared.closed.lock() = Some(until);
    }

    /// From now on kernels that occupy a device end with a fence.
    pub(crate) fn occupy_until(&self, end: Fence) {
        *self.shared.kernel.lock() = Some(end);
    }

    pub(crate) fn enqueued(&self) -> u64 {
        self.shared.enqueued.load(Ordering::SeqCst)
    }

    /// Returns the number of references to the backend during the last allocation.
    pub(crate) fn handles_when_asked(&self) -> u64 {
        self.handles.load(Ordering::SeqCst)
    }

    pub(crate) fn performed(&self) -> u64 {
        self.shared.performed.load(Ordering::SeqCst)
    }

    pub(crate) fn leased(&self) -> Vec<(DeviceId, StreamPriority, WorkloadType)> {
        self.shared.leased.lock().clone()
    }

    fn knows(&self, device: DeviceId) -> Result<()> {
        let unknown = || Error::new(ErrorKind::UnknownDevice, "not a device of the mock");
        self.devices.iter().find(|info| info.id == device).map(drop).ok_or_else(unknown)
    }
}

impl Backend for MockBackend {
    fn name(&self) -> &'static str {
        "mock"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        self.devices.clone()
    }

    fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        self.knows(device)?;
        self.handles.store(self.own.strong_count() as u64, Ordering::SeqCst);
        if kind == MemoryKind::Pinned {
            let has_pinned = |info: &DeviceInfo| info.id == device && info.kinds.contains(&kind);
            if !device.is_cpu() && !self.devices.iter().any(has_pinned) {
                return Err(Error::new(ErrorKind::Unsupported, format!("{device} has no {kind} memory")));
            }
            self.pin()?;
        }
        let hosts = matches!(kind, MemoryKind::Pageable | MemoryKind::Pinned | MemoryKind::Mapped);
        let place = Place::new(if hosts { DeviceId::Cpu } else { device }, kind);
        Ok(RawBuffer::new(Box::new(Memory::new(place, vec![0; bytes], true, &self.shared)), &self.reclaimer))
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.knows(device)?;
        let is_known = self.devices.iter().all(|info| info.total_memory.is_none());
        let unknown = || Error::new(ErrorKind::Unsupported, "planted");
        is_known.then_some(MemoryInfo { free: self.free, total: 1 << 30 }).ok_or_else(unknown)
    }

    fn lease_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        workload: WorkloadType,
    ) -> Result<QueueLease> {
        self.knows(device)?;
        self.shared.leased.lock().push((device, priority, workload));
        self.shared.leases.fetch_add(1, Ordering::SeqCst);
        let mine: Vec<_> = self.queues.iter().filter(|queue| queue.timeline.device == device).collect();
        let turn = self.next.fetch_add(1, Ordering::SeqCst) as usize;
        let in_turn = mine.iter().cycle().skip(turn % mine.len()).take(mine.len());
        let Some(least) = in_turn.min_by_key(|queue| queue.outstanding()) else {
            return Err(Error::new(ErrorKind::UnknownDevice, "a device without queues"));
        };
        Ok(QueueLease::new(Arc::clone(least) as Arc<dyn Queue>))
    }

    fn staging_hints(&self, _: DeviceId) -> StagingHints {
        self.staging
    }

    fn copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        let device = if dst.device.is_cpu() { src.device } else { dst.device };
        ((self.copies)(src, dst) && self.knows(device).is_ok()).then_some(device)
    }

    fn in_place_copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        self.copier(src, dst).and(self.in_place)
    }

    fn default_costs(&self) -> Vec<PathCost> {
        self.costs.clone()
    }

    fn resource_counts(&self) -> ResourceCounts {
        let (mut counts, shared) = (ResourceCounts::default(), &self.shared);
        counts.allocations = shared.allocations.load(Ordering::SeqCst);
        counts.pending_free = self.reclaimer.len() as u64;
        counts.leases = shared.leases.load(Ordering::SeqCst);
        counts
    }

    fn drain(&self) -> Result<()> {
        self.queues.iter().for_each(|queue| queue.timeline.perform_until(u64::MAX));
        self.reclaimer.drain()
    }

    fn share(&self, buffer: &RawBuffer, device: DeviceId) -> Result<transload_core::SharedBuffer> {
        if !self.shares {
            return Err(Error::new(ErrorKind::Unsupported, "the mock does not share"));
        }
        let copy = self.allocate(device, MemoryKind::Device, buffer.len())?;
        let queue = self.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory)?;
        let arrival = submit(&*queue, &Operation::Copy { src: buffer, dst: &copy }, Timing::Off)?;
        Ok(transload_core::SharedBuffer { buffer: copy, copied: true, arrival: Some(arrival) })
    }

    fn peer_access(&self, _: DeviceId, _: DeviceId) -> Result<PeerAccess> {
        Ok(if self.peers { PeerAccess::Available } else { PeerAccess::Unavailable })
    }

    fn enable_peer_access(&self, _: DeviceId, _: DeviceId) -> Result<()> {
        match self.shared.refusals.lock().pop_front() {
            None if self.enables_peers => Ok(()),
            kind => Err(Error::new(kind.unwrap_or(ErrorKind::Unsupported), "no peer access")),
        }
    }

    fn prepare_in_place(&self, _: DeviceId) -> Result<()> {
        let refuse = |kind| Err(Error::new(kind, "planted refusal"));
        self.shared.refusals.lock().pop_front().map_or(Ok(()), refuse)
    }
}
