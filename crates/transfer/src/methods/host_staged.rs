//! Copies in chunks through pinned host memory, on several threads: for pageable memory, and between devices that are
//! no peers.

use std::{iter, sync::Arc};

use smallvec::{SmallVec, smallvec};
use transload_core::{
    Backend, DeviceId, Fence, MemoryKind, Place, RawBuffer, RejectReason, Result, Timeline, TransferMethod,
    TransferPath, WorkloadType,
};
use transload_executor::Executor;

use super::{Method, Route, Submitted, Topology, TransferRequest};
use crate::{
    attempt::NotSubmitted,
    planning::request::PlanInput,
    report_events,
    staging::{
        Pieces, RingHold, StagedKind, StagedTimeline, StagedTransfer, StagingRings, chunk_for, chunks_of,
    },
    stats::lost::name_lost_device,
};

pub(super) struct HostStaged {
    executor: Executor,
    rings: Arc<StagingRings>,
}

impl HostStaged {
    pub(super) fn new(executor: Executor, rings: &Arc<StagingRings>) -> Self {
        Self { executor, rings: Arc::clone(rings) }
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
        let pinned = Place::new(DeviceId::Cpu, MemoryKind::Pinned);
        let registered = topology.registered(lane).ok_or(RejectReason::NoQueue)?;
        let stages = registered.device(lane).is_some_and(|info| info.kinds.contains(&MemoryKind::Pinned));
        if !stages {
            return Err(RejectReason::NoStagingMemory);
        }
        let mut route = topology.route(lane).ok_or(RejectReason::NoQueue)?;
        for (from, to) in [(src, pinned), (pinned, dst)] {
            let by_host = from.device.is_cpu() && to.device.is_cpu();
            if !by_host && topology.copier(TransferPath::new(from, to)).is_none() {
                return Err(RejectReason::NoQueue);
            }
        }
        let staged = if src.device.is_cpu() { (pinned, dst) } else { (src, pinned) };
        route.has_kernel = topology.in_place_copier(TransferPath::new(staged.0, staged.1)).is_some();
        if !src.device.is_cpu() && !dst.device.is_cpu() {
            route.has_kernel = false;
            route.second =
                topology.registered(dst.device).map(|other| (Arc::clone(&other.backend), dst.device));
            route.lanes = 2;
        }
        Ok(route)
    }

    fn chunks(&self, _: &Route, input: &PlanInput) -> u32 {
        chunks_of(input.bytes, input.path.src.device.is_cpu())
    }

    fn is_of_one_queue(&self, _: TransferPath) -> bool {
        false
    }

    /// At most what the ring holds.
    fn queued(&self, bytes: u64) -> u64 {
        let chunk = chunk_for(usize::try_from(bytes).unwrap_or(usize::MAX), false);
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
            None => self.submit_pairs(route, request, None),
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
        Ok(())
    }
}

impl HostStaged {
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
            && match route.backend.prepare_in_place(route.lane) {
                Ok(()) => true,
                Err(error) => {
                    report_events::kernel_unavailable(route.lane, &error);
                    false
                }
            };
        let workload = if in_place { WorkloadType::Compute } else { WorkloadType::Memory };
        let lease =
            |backend: &Arc<dyn Backend>, device| request.lease_for_workers(&**backend, device, workload);
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
            None if src.place().device.is_cpu() => StagedKind::Upload(lease(&route.backend, route.lane)?),
            None => StagedKind::Download(lease(&route.backend, route.lane)?),
        };
        let hold = self.rings.get_or_create(&route.backend, route.lane).hold(request.insists())?;
        start_staged(hold, request, pairs, (kind, in_place), backends, route.lane)
    }
}

/// Starts the executor's first thread.
pub(super) fn start_threads(executor: &Executor) -> Result<()> {
    let task = executor.spawn(async {});
    if task.is_finished() { task.wait() } else { Ok(()) }
}

/// Claims the buffers of the request's pair, or of these instead, commits the transfer's fence, and starts it.
///
/// # Errors
/// [`ErrorKind::Busy`](transload_core::ErrorKind::Busy) if a host view is open on a range; the conflict;
/// [`ErrorKind::Io`](transload_core::ErrorKind::Io) if the system refuses the first thread.
pub(super) fn start_staged(
    hold: RingHold,
    request: &TransferRequest<'_>,
    pairs: Option<&[(RawBuffer, RawBuffer)]>,
    (kind, in_place): (StagedKind, bool),
    backends: SmallVec<[Arc<dyn Backend>; 2]>,
    lane: DeviceId,
) -> Result<Submitted, NotSubmitted> {
    let (src, dst) = (request.src, request.dst);
    let (mut claims, pieces) = match pairs {
        None => (request.claim()?, Pieces::all(iter::once((src, dst)))?),
        Some(pairs) => (request.claim_all(pairs)?, Pieces::all(pairs.iter().map(|(src, dst)| (src, dst)))?),
    };
    claims.wait_also(request.after());
    // The timeline belongs to the lane, whichever thread does the work.
    match &kind {
        StagedKind::FromUnified(_) => src.record_external_use(DeviceId::Cpu),
        StagedKind::DeviceToDevice(_, to) => match pairs {
            None => dst.record_external_use(to.device()),
            Some(pairs) => pairs.iter().for_each(|(_, dst)| dst.record_external_use(to.device())),
        },
        StagedKind::Upload(_) | StagedKind::Download(_) | StagedKind::ToUnified(_) => {}
    }
    let end = Arc::new(StagedTimeline::new(lane, request.timing));
    let after = claims.after().iter().cloned().collect();
    let orders = (request.id(), request.options.priority);
    StagedTransfer::new(pieces, (kind, in_place), backends, after, hold, orders, Arc::clone(&end)).start()?;
    let fence = claims.inherit(Fence::new(end as Arc<dyn Timeline>, 1));
    // SAFETY: the transfer touches the ranges only after its dependencies are complete, and its timeline completes
    // after its last copy.
    unsafe { claims.commit(&fence) };
    Ok(Submitted::Until(fence))
}
