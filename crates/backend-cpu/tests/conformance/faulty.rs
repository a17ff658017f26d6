//! The CPU backend with one fault planted.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use transload_core::{
    Access, Backend, CostModel, DeviceId, DeviceInfo, Error, ErrorKind, Fence, MemoryInfo, MemoryKind,
    Operation, PathCost, Pattern, Place, PointSignal, Queue, QueueLease, RawBuffer, Recording,
    ResourceCounts, Result, StreamPriority, Timeline, TimelineId, Timing, TransferMethod, TransferPath,
    WorkloadType, merged_uses, submit,
};

/// The planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    DropsWaits,
    CopiesOneByteShort,
    WritesOneByteBeyond,
    IgnoresTheSourcesOffset,
    CompletesFencesEarly,
    WaitsReturnEarly,
    NeverPollsTrue,
    NeverWakes,
    WakesEarly,
    WakesTwice,
    GivesDurationsTwice,
    MeasuresEverySecond,
    LeaksAllocations,
    LeaksLeases,
    FillsWithOneByteOnly,
    ClaimsToPrefetch,
    ForgetsTheLastPair,
    CopiesTheFirstRowOnly,
    AllocatesZeroBytes,
    ListsPinnedMemory,
    IgnoresItsLimit,
    ServesUnknownDevices,
    NamesNoNumbers,
    HasCostsForNothing,
    CopiesFromNowhere,
    SwapsPriorities,
    ForgetsTheLastRecorded,
    RecordsByDoing,
    HidesAUse,
    Panics,
    ForgetsSignals,
    DropsWaitsOfAliases,
    SkipsMemoryOfOthers,
}

/// Copies to run one after the other.
#[derive(Debug)]
struct FaultyRecording {
    copies: Vec<(RawBuffer, RawBuffer)>,
    uses: Vec<(RawBuffer, Access)>,
}

// SAFETY: the uses are those of the copies, but where a use is hidden as the planted fault.
unsafe impl Recording for FaultyRecording {
    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn uses(&self) -> &[(RawBuffer, Access)] {
        &self.uses
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The backend.
pub(crate) struct Faulty {
    inner: Arc<dyn Backend>,
    fault: Fault,
    turn: AtomicU64,
}

impl Faulty {
    pub(crate) fn around(inner: Arc<dyn Backend>, fault: Fault) -> Arc<dyn Backend> {
        Arc::new(Self { inner, fault, turn: AtomicU64::new(0) })
    }

    fn every(&self, nth: u64) -> bool {
        self.turn.fetch_add(1, Ordering::Relaxed) % nth == nth - 1
    }

    fn device(&self, device: DeviceId) -> DeviceId {
        if self.fault == Fault::ServesUnknownDevices { DeviceId::Cpu } else { device }
    }
}

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let mut devices = self.inner.devices();
        if self.fault == Fault::ListsPinnedMemory {
            devices[0].kinds.push(MemoryKind::Pinned);
        }
        if self.fault == Fault::IgnoresItsLimit {
            devices[0].largest_allocation = Some(1 << 20);
        }
        devices
    }

    fn allocate(&self, device: DeviceId, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        let zero = self.fault == Fault::AllocatesZeroBytes && bytes == 0;
        match self.inner.allocate(self.device(device), kind, if zero { 1 } else { bytes }) {
            Ok(buffer) => {
                if self.fault == Fault::LeaksAllocations && self.every(40) {
                    std::mem::forget(buffer.clone());
                }
                Ok(buffer)
            }
            Err(error) if self.fault == Fault::NamesNoNumbers && error.memory_shortage().is_some() => {
                Err(Error::new(ErrorKind::OutOfMemory, "no memory"))
            }
            Err(error) => Err(error),
        }
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.inner.memory_info(self.device(device))
    }

    fn lease_queue(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        workload: WorkloadType,
    ) -> Result<QueueLease> {
        let priority = match priority {
            StreamPriority::Low if self.fault == Fault::SwapsPriorities => StreamPriority::High,
            priority => priority,
        };
        let lease = self.inner.lease_queue(self.device(device), priority, workload)?;
        if self.fault == Fault::LeaksLeases && self.every(10) {
            std::mem::forget(self.inner.lease_queue(device, priority, workload)?);
        }
        let timeline = FaultyTimeline { inner: Arc::clone(lease.timeline()), fault: self.fault };
        let timeline: Arc<dyn Timeline> = Arc::new(timeline);
        Ok(QueueLease::new(Arc::new(FaultyQueue { lease, timeline, fault: self.fault })))
    }

    fn copier(&self, src: Place, dst: Place) -> Option<DeviceId> {
        if self.fault == Fault::CopiesFromNowhere { Some(DeviceId::Cpu) } else { self.inner.copier(src, dst) }
    }

    fn default_costs(&self) -> Vec<PathCost> {
        let mut costs = self.inner.default_costs();
        if self.fault == Fault::HasCostsForNothing {
            let place = |kind| Place::new(DeviceId::Cuda(7), kind);
            costs.push(PathCost {
                path: TransferPath::new(place(MemoryKind::Device), place(MemoryKind::Unified)),
                method: TransferMethod::DirectCopy,
                model: CostModel::linear(Duration::from_micros(1), 1e9),
            });
        }
        costs
    }

    fn record(
        &self,
        device: DeviceId,
        priority: StreamPriority,
        operations: &[Operation<'_>],
    ) -> Result<Arc<dyn Recording>> {
        let recorded = |operation: &Operation<'_>| match *operation {
            Operation::Copy { src, dst } => Ok((src.clone(), dst.clone())),
            _ => Err(Error::new(ErrorKind::Unsupported, "only copies are recorded")),
        };
        let mut copies = operations.iter().map(recorded).collect::<Result<Vec<_>>>()?;
        let mut uses = merged_uses(operations);
        match self.fault {
            Fault::ForgetsTheLastRecorded => drop(copies.pop()),
            Fault::HidesAUse => drop(uses.pop()),
            Fault::RecordsByDoing => {
                let queue = self.lease_queue(device, priority, WorkloadType::Memory)?;
                operations
                    .iter()
                    .try_for_each(|operation| submit(&*queue, operation, Timing::Off)?.wait())?;
            }
            _ => return Err(Error::new(ErrorKind::Unsupported, "nothing is recorded")),
        }
        Ok(Arc::new(FaultyRecording { copies, uses }))
    }

    fn resource_counts(&self) -> ResourceCounts {
        self.inner.resource_counts()
    }

    fn drain(&self) -> Result<()> {
        self.inner.drain()
    }
}

struct FaultyQueue {
    lease: QueueLease,
    timeline: Arc<dyn Timeline>,
    fault: Fault,
}

impl FaultyQueue {
    /// A fault after the operation, applied inline through host addresses.
    fn harm(&self, operation: &Operation<'_>) {
        let Operation::Copy { src, dst } = *operation else { return };
        let (Some(from), Some(to)) = (src.host_address(), dst.host_address()) else { return };
        let whole = |buffer: &RawBuffer| buffer.storage().map_or(0, |storage| storage.len());
        match self.fault {
            Fault::WritesOneByteBeyond if dst.offset() + dst.len() < whole(dst) && !dst.is_empty() => {
                // SAFETY: the byte is within the allocation, which the operation keeps alive. That somebody else may use
                // it is the planted fault.
                unsafe { *to.as_ptr().add(dst.len()) ^= 0xFF };
            }
            Fault::IgnoresTheSourcesOffset => {
                // SAFETY: the allocation begins there and is at least as long as the slice; the ranges may overlap.
                unsafe { from.as_ptr().sub(src.offset()).copy_to(to.as_ptr(), dst.len()) };
            }
            _ => {}
        }
    }
}

// SAFETY: none where a fault is planted: the suite must find what it does.
unsafe impl Queue for FaultyQueue {
    fn device(&self) -> DeviceId {
        self.lease.device()
    }

    fn priority(&self) -> StreamPriority {
        self.lease.priority()
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    fn can_copy(&self, src: Place, dst: Place) -> bool {
        self.lease.can_copy(src, dst)
    }

    fn can_wait_for(&self, fence: &Fence) -> bool {
        self.lease.can_wait_for(fence)
    }

    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence> {
        let is_alias = operation.uses().iter().any(|(buffer, _)| buffer.alias_of().is_some());
        let drops_waits =
            self.fault == Fault::DropsWaits || self.fault == Fault::DropsWaitsOfAliases && is_alias;
        let after = if drops_waits { &[] } else { after };
        // SAFETY: the caller's promise, broken on purpose where waits are dropped: the CPU's jobs keep their buffers alive.
        let enqueue = |operation: &Operation<'_>| unsafe { self.lease.enqueue(operation, after, timing) };
        let fence = match (self.fault, *operation) {
            (Fault::CopiesOneByteShort, Operation::Copy { src, dst }) if src.len() > 1 => {
                let end = src.len() - 1;
                enqueue(&Operation::Copy { src: &src.slice(..end)?, dst: &dst.slice(..end)? })
            }
            (Fault::FillsWithOneByteOnly, Operation::Fill { dst, pattern: Pattern::U32(word) }) => {
                enqueue(&Operation::Fill { dst, pattern: Pattern::U8(word.to_ne_bytes()[0]) })
            }
            (Fault::ClaimsToPrefetch, Operation::Prefetch { .. }) => {
                enqueue(&Operation::CopyBatch { pairs: &[] })
            }
            (Fault::ForgetsTheLastPair, Operation::CopyBatch { pairs }) => {
                enqueue(&Operation::CopyBatch { pairs: &pairs[..pairs.len().saturating_sub(1)] })
            }
            (Fault::CopiesTheFirstRowOnly, Operation::CopyPitched { src, dst, mut rows }) => {
                rows.height = 1;
                enqueue(&Operation::CopyPitched { src, dst, rows })
            }
            (_, Operation::Replay { recorded }) => {
                let Some(recorded) = recorded.as_any().downcast_ref::<FaultyRecording>() else {
                    return enqueue(operation);
                };
                let mut last = enqueue(&Operation::CopyBatch { pairs: &[] });
                for (src, dst) in &recorded.copies {
                    last = last.and_then(|_| enqueue(&Operation::Copy { src, dst }));
                }
                last
            }
            (Fault::SkipsMemoryOfOthers, Operation::Copy { src, .. }) if src.maker().is_some() => {
                enqueue(&Operation::CopyBatch { pairs: &[] })
            }
            (Fault::Panics, Operation::Fill { .. }) => panic!("planted"),
            _ => enqueue(operation),
        }?;
        if matches!(self.fault, Fault::WritesOneByteBeyond | Fault::IgnoresTheSourcesOffset) {
            fence.wait()?;
            self.harm(operation);
        }
        Ok(Fence::new(Arc::clone(&self.timeline), fence.point()))
    }

    fn outstanding(&self) -> u64 {
        self.lease.outstanding()
    }
}

struct FaultyTimeline {
    inner: Arc<dyn Timeline>,
    fault: Fault,
}

// SAFETY: none where a fault is planted: the suite must find what it does.
unsafe impl Timeline for FaultyTimeline {
    fn id(&self) -> TimelineId {
        self.inner.id()
    }

    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn reached(&self) -> u64 {
        match self.fault {
            Fault::CompletesFencesEarly => u64::MAX,
            _ => self.inner.reached(),
        }
    }

    fn poll(&self, point: u64) -> Result<bool> {
        match self.fault {
            Fault::CompletesFencesEarly => Ok(true),
            Fault::NeverPollsTrue => Ok(false),
            _ => self.inner.poll(point),
        }
    }

    fn wait(&self, point: u64) -> Result<()> {
        match self.fault {
            Fault::CompletesFencesEarly | Fault::WaitsReturnEarly => Ok(()),
            _ => self.inner.wait(point),
        }
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        // The backend's own workers wait for fences, too: without wakers they stand still, and nothing ends.
        if std::thread::current().name().is_some_and(|name| name.starts_with("transload-cpu")) {
            return self.inner.wake_at(point, waker);
        }
        match self.fault {
            Fault::CompletesFencesEarly => true,
            Fault::NeverWakes => self.inner.reached() >= point,
            Fault::WakesEarly if self.inner.reached() < point => {
                waker.wake_by_ref();
                false
            }
            Fault::WakesTwice => {
                let over = self.inner.wake_at(point, waker);
                if !over {
                    waker.wake_by_ref();
                }
                over
            }
            _ => self.inner.wake_at(point, waker),
        }
    }

    fn take_duration(&self, point: u64) -> Result<Option<Duration>> {
        match self.fault {
            Fault::GivesDurationsTwice => Ok(Some(Duration::from_micros(1))),
            Fault::MeasuresEverySecond if (point / 2).is_multiple_of(2) => {
                self.inner.take_duration(point).map(|_| None)
            }
            _ => self.inner.take_duration(point),
        }
    }

    fn ends_by_host_alone(&self, point: u64) -> bool {
        self.inner.ends_by_host_alone(point)
    }

    fn signal_at(&self, point: u64, signal: PointSignal) {
        if self.fault != Fault::ForgetsSignals {
            self.inner.signal_at(point, signal);
        }
    }

    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
}
