//! Copies in chunks through pinned host memory, on several threads: for pageable memory, and between devices that are
//! no peers, also through pageable memory.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use transload_core::{
    Access, Backend, Claims, DeviceId, Fence, HalfPairs, MemoryKind, Place, RawBuffer, RejectReason, Result,
    StreamPriority, Timeline, TransferMethod, TransferPath, WorkloadType,
};
use transload_executor::Executor;

use super::{
    CHUNK, Method, Route, Submitted, Topology, TransferRequest,
    device_scratch::{DeviceScratch, Purpose, has_kernel},
};
use crate::{
    attempt::{Deferral, NotSubmitted},
    context::ManagerContext,
    planning::request::PlanInput,
    report_events,
    staging::{
        EVEN_CHUNKS, Pieces, Queues, RepeatedStaging, RingHold, ShortUpload, StagedKind, StagedTimeline,
        StagedTransfer, StagingRings, ThroughDevice, chunks_of, even_chunk, helpers_for,
    },
    stats::lost::name_lost_device,
};

pub(super) struct HostStaged {
    executor: Executor,
    rings: Arc<StagingRings>,
    scratch: Arc<DeviceScratch>,
    repeated: RepeatedStaging,
}

impl HostStaged {
    pub(super) fn new(
        executor: Executor,
        rings: &Arc<StagingRings>,
        scratch: &Arc<DeviceScratch>,
        context: &Arc<ManagerContext>,
    ) -> Self {
        let repeated = RepeatedStaging::new(Arc::clone(context), executor.clone());
        Self { executor, rings: Arc::clone(rings), scratch: Arc::clone(scratch), repeated }
    }
}

/// Returns whether a place is host memory that copy engines cannot access.
fn is_pageable(place: Place) -> bool {
    place.device.is_cpu() && place.kind == MemoryKind::Pageable
}

impl Method for HostStaged {
    fn method(&self) -> TransferMethod {
        TransferMethod::HostStaged
    }

    fn applicable(&self, path: TransferPath, topology: &Topology<'_>) -> Result<Route, RejectReason> {
        let TransferPath { src, dst } = path;
        let lane = match (src.device.is_cpu(), dst.device.is_cpu()) {
            (true, true) => return Err(RejectReason::NoDevice),
            (false, false) if src.device == dst.device => return Err(RejectReason::SameDevice),
            (true, false) if !is_pageable(src) => return Err(RejectReason::AlreadyPinned),
            (false, true) if !is_pageable(dst) => return Err(RejectReason::AlreadyPinned),
            (true, false) => dst.device,
            (false, _) => src.device,
        };
        let is_between_devices = !src.device.is_cpu() && !dst.device.is_cpu();
        let registered = topology.registered(lane).ok_or(RejectReason::NoQueue)?;
        let has_pinned = registered.device(lane).is_some_and(|info| info.kinds.contains(&MemoryKind::Pinned));
        let has_pageable = || {
            is_between_devices
                && topology.registered(DeviceId::Cpu).is_some()
                && !transload_core::mutant!("transfer/pageable-staging")
        };
        let kind = match has_pinned {
            true => MemoryKind::Pinned,
            // As fast as the devices' queues copy it, and the only way.
            false if has_pageable() => MemoryKind::Pageable,
            false => return Err(RejectReason::NoStagingMemory),
        };
        let staging = Place::new(DeviceId::Cpu, kind);
        let mut route = topology.route(lane).ok_or(RejectReason::NoQueue)?;
        for (from, to) in [(src, staging), (staging, dst)] {
            let by_host = from.device.is_cpu() && to.device.is_cpu();
            if !by_host && topology.copier(TransferPath::new(from, to)).is_none() {
                return Err(RejectReason::NoQueue);
            }
        }
        let staged = if src.device.is_cpu() { (staging, dst) } else { (src, staging) };
        let kernel = topology.in_place_copier(TransferPath::new(staged.0, staged.1));
        route.has_kernel = kernel.is_some_and(|kernel| kernel.lane == lane);
        if is_between_devices {
            route.has_kernel = false;
            route.second =
                topology.registered(dst.device).map(|other| (Arc::clone(&other.backend), dst.device));
            route.lanes = 2;
        }
        Ok(route)
    }

    fn chunks(&self, _: &Route, input: &PlanInput) -> u32 {
        let is_between_devices = !input.path.src.device.is_cpu() && !input.path.dst.device.is_cpu();
        chunks_of(input.bytes, is_between_devices.then_some(EVEN_CHUNKS))
    }

    fn is_of_one_queue(&self, _: TransferPath) -> bool {
        false
    }

    /// At most what the ring holds.
    fn queued(&self, _: &Route, bytes: u64) -> u64 {
        let chunk = even_chunk(usize::try_from(bytes).unwrap_or(usize::MAX), EVEN_CHUNKS);
        bytes.min(chunk.saturating_mul(self.rings.ring_size()) as u64)
    }

    /// Only the first staging buffer is allocated by the thread that submits.
    fn copies_during_call(&self, route: &Route, _: &PlanInput) -> bool {
        !self.is_ready(route)
    }

    fn is_ready(&self, route: &Route) -> bool {
        self.rings.get(route.lane).is_some_and(|ring| ring.has_buffer())
    }

    fn submit(&self, route: &Route, request: &TransferRequest<'_>) -> Result<Submitted, NotSubmitted> {
        match request.rows() {
            None => {
                let submitted = self.submit_pairs(route, request, None)?;
                self.repeated.count(route, request);
                Ok(submitted)
            }
            Some(rows) => self.submit_many(route, request, &rows.pairs(request.src, request.dst)?),
        }
    }

    /// Unified memory may have to be moved first.
    fn takes_many(&self, path: &TransferPath) -> bool {
        [path.src, path.dst].iter().all(|place| place.kind != MemoryKind::Unified)
    }

    fn submit_many(
        &self,
        route: &Route,
        request: &TransferRequest<'_>,
        pairs: &[(RawBuffer, RawBuffer)],
    ) -> Result<Submitted, NotSubmitted> {
        self.submit_pairs(route, request, Some(pairs))
    }

    /// The pieces are gathered or scattered by host threads on the one side, and by a kernel on the other.
    fn submit_through_device(
        &self,
        route: &Route,
        request: &TransferRequest<'_>,
        pairs: HalfPairs<'_>,
    ) -> Result<Option<Submitted>, NotSubmitted> {
        let HalfPairs::Pairs(pairs) = pairs else { return Ok(None) };
        let bytes = bytes_of(pairs);
        if route.second.is_some() || bytes > CHUNK || !has_kernel(&*route.backend, route.lane) {
            return Ok(None);
        }
        if request.task().is_some_and(|task| !task.may_be_slow) {
            return Err(NotSubmitted::Deferred(Deferral::Slow(route.lane)));
        }
        if route.backend.prepare_in_place(route.lane).is_err() {
            return Ok(None);
        }
        let is_upload = request.src.place().device.is_cpu();
        let queue = request.lease_for_workers(&*route.backend, route.lane, WorkloadType::Memory)?;
        let queues = queue.into();
        let kind = if is_upload { StagedKind::Upload(queues) } else { StagedKind::Download(queues) };
        // Beside other kernels it waits for a place.
        let queue =
            route.backend.lease_reserved_queue(route.lane, StreamPriority::High, WorkloadType::Compute)?;
        let hold = self.rings.get_or_create(&route.backend, route.lane).hold(request.insists())?;
        let purpose = Purpose { device: route.lane, is_upload, is_staged: true };
        let ready = self.scratch.ready(&*route.backend, purpose, (1, bytes));
        self.wake_for(&hold, request, bytes);
        let claimed = Claimed::new(request, Some(pairs))?;
        let is_held_up = claimed.claims.after().iter().any(|fence| !fence.is_complete());
        let Some(taken) = ready.take(is_held_up) else { return Ok(None) };
        let Some(memory) = taken.memory().next() else { return Ok(None) };
        let scratch = memory.slice(..bytes)?;
        // Only lists of this kind use it, in the order in which they took it.
        let own = Claims::acquire(&mut [(&scratch, Access::Write)])?;
        let through_device = ThroughDevice::new(queue, scratch.clone());
        let kind = (kind, false, Some(through_device));
        let end = claimed.start(
            hold,
            request,
            kind,
            smallvec![Arc::clone(&route.backend)],
            (route.lane, own.after()),
        )?;
        // SAFETY: the transfer uses the scratch memory only after its dependencies, and its timeline completes after its last use of it.
        unsafe { own.commit(&end) };
        taken.used(1, Some(&end));
        Ok(Some(Submitted::Until(end)))
    }

    fn start(&self, route: &Route) -> Result<()> {
        start_threads(&self.executor)?;
        if transload_core::mutant!("transfer/prepare-fills-ring") {
            return Ok(());
        }
        self.rings.get_or_create(&route.backend, route.lane).fill()
    }

    fn drain(&self) -> Result<()> {
        self.executor.drain()?;
        self.rings.release();
        self.scratch.release();
        Ok(())
    }
}

impl HostStaged {
    /// Wakes workers for what is about to be claimed, while that is done.
    fn wake_for(&self, hold: &RingHold, request: &TransferRequest<'_>, bytes: usize) {
        if request.after().iter().all(Fence::is_known_complete) {
            self.executor.wake(helpers_for(&hold.tuning, bytes, bytes));
        }
    }

    /// Submits the request's pair, or these instead.
    fn submit_pairs(
        &self,
        route: &Route,
        request: &TransferRequest<'_>,
        pairs: Option<&[(RawBuffer, RawBuffer)]>,
    ) -> Result<Submitted, NotSubmitted> {
        let src = request.src;
        // If the driver rejects the kernel, the copy engine copies.
        let in_place = request.by_kernel
            && match request.prepare_kernel(route)? {
                Ok(()) => true,
                Err(error) => {
                    report_events::kernel_unavailable(route.lane, &error);
                    false
                }
            };
        let hints = route.backend.staging_hints(route.lane);
        let most = |pairs: &[_]| hints.computed_piece.saturating_mul(pairs.len());
        let is_computed = pairs.is_some_and(|pairs| (1..=most(pairs)).contains(&bytes_of(pairs)));
        let queues = if is_computed { 1 } else { hints.queues };
        let workload = if in_place || is_computed { WorkloadType::Compute } else { WorkloadType::Memory };
        let lease =
            |backend: &Arc<dyn Backend>, device| request.lease_for_workers(&**backend, device, workload);
        let may_be_short = src.place().device.is_cpu() && route.second.is_none() && !in_place;
        if pairs.is_none() && may_be_short && request.waits() && ShortUpload::fits(src.len()) {
            let (queue, claims) = (lease(&route.backend, route.lane)?, request.claim()?);
            let ring = self.rings.get(route.lane);
            if let Some(upload) = ShortUpload::new(ring, &*queue, &claims, request.after()) {
                return Ok(upload.run(
                    &*queue,
                    (src, request.dst),
                    claims,
                    (request.id(), request.timing),
                )?);
            }
        }
        let mut backends = smallvec![Arc::clone(&route.backend)];
        let kind = match &route.second {
            Some((other, device)) => {
                let kind = StagedKind::DeviceToDevice(
                    lease(&route.backend, route.lane)?,
                    lease(other, *device).map_err(|error| match error {
                        NotSubmitted::Failed(error) => name_lost_device(*device, error).into(),
                        deferred => deferred,
                    })?,
                );
                backends.push(Arc::clone(other));
                kind
            }
            None => {
                let others = (1..queues).map(|_| lease(&route.backend, route.lane));
                let queues =
                    Queues::new(lease(&route.backend, route.lane)?, others.collect::<Result<_, _>>()?);
                if src.place().device.is_cpu() {
                    StagedKind::Upload(queues)
                } else {
                    StagedKind::Download(queues)
                }
            }
        };
        let hold = self.rings.get_or_create(&route.backend, route.lane).hold(request.insists())?;
        self.wake_for(&hold, request, pairs.map_or(src.len(), bytes_of));
        let kind = (kind, in_place, None);
        let end = Claimed::new(request, pairs)?.start(hold, request, kind, backends, (route.lane, &[]))?;
        Ok(Submitted::Until(end))
    }
}

fn bytes_of(pairs: &[(RawBuffer, RawBuffer)]) -> usize {
    pairs.iter().map(|(src, _)| src.len()).fold(0, usize::saturating_add)
}

/// Starts the executor's first thread.
pub(super) fn start_threads(executor: &Executor) -> Result<()> {
    let task = executor.spawn(async {});
    if task.is_finished() { task.wait() } else { Ok(()) }
}

/// Claims the buffers of the request's pair, commits the transfer's fence, and starts it.
///
/// # Errors
/// [`ErrorKind::Busy`](transload_core::ErrorKind::Busy) if a host view is open on a range; the conflict;
/// [`ErrorKind::Io`](transload_core::ErrorKind::Io) if the system refuses the first thread.
pub(super) fn start_staged(
    hold: RingHold,
    request: &TransferRequest<'_>,
    kind: StagedKind,
    backends: SmallVec<[Arc<dyn Backend>; 2]>,
    lane: DeviceId,
) -> Result<Submitted, NotSubmitted> {
    let end =
        Claimed::new(request, None)?.start(hold, request, (kind, false, None), backends, (lane, &[]))?;
    Ok(Submitted::Until(end))
}

/// The claimed ranges of a staged transfer.
struct Claimed<'a> {
    claims: Claims<'a>,
    pieces: Pieces,
    pairs: Option<&'a [(RawBuffer, RawBuffer)]>,
}

impl<'a> Claimed<'a> {
    /// Claims the request's pair, or these instead.
    fn new(
        request: &TransferRequest<'a>,
        pairs: Option<&'a [(RawBuffer, RawBuffer)]>,
    ) -> Result<Self, NotSubmitted> {
        let (mut claims, pieces) = match pairs {
            None => (request.claim()?, Pieces::one(request.src, request.dst)?),
            Some(pairs) => (request.claim_all(pairs)?, Pieces::all(pairs)),
        };
        claims.wait_also(request.after());
        Ok(Self { claims, pieces, pairs })
    }

    /// Starts the transfer, after these fences too, and commits its fence.
    fn start(
        self,
        hold: RingHold,
        request: &TransferRequest<'a>,
        way: (StagedKind, bool, Option<ThroughDevice>),
        backends: SmallVec<[Arc<dyn Backend>; 2]>,
        (lane, also): (DeviceId, &[Fence]),
    ) -> Result<Fence, NotSubmitted> {
        let Self { claims, pieces, pairs } = self;
        let (src, dst) = (request.src, request.dst);
        // The timeline belongs to the lane, whichever thread does the work.
        match &way.0 {
            StagedKind::FromUnified(_) => src.record_external_use(DeviceId::Cpu),
            StagedKind::DeviceToDevice(_, to) => match pairs {
                None => dst.record_external_use(to.device()),
                Some(pairs) => pairs.iter().for_each(|(_, dst)| dst.record_external_use(to.device())),
            },
            StagedKind::Upload(_) | StagedKind::Download(_) | StagedKind::ToUnified(_) => {}
        }
        let end = Arc::new(StagedTimeline::new(lane, request.timing));
        let after = claims.after().iter().chain(also).cloned().collect();
        let orders = (request.id(), request.options.priority, request.begins_by_waiting());
        StagedTransfer::new(pieces, way, backends, after, hold, orders, Arc::clone(&end)).start()?;
        let fence = claims.inherit(Fence::new(end as Arc<dyn Timeline>, 1));
        // SAFETY: the transfer touches the ranges only after its dependencies are complete, and its timeline completes
        // after its last copy.
        unsafe { claims.commit(&fence) };
        Ok(fence)
    }
}
