//! Copies from or to unified memory: host threads copy, and the memory is prefetched as a whole.

use std::sync::Arc;

use smallvec::smallvec;
use transload_core::{
    DeviceId, MemoryKind, Operation, Place, RejectReason, Result, Timing, TransferMethod, TransferPath,
    WorkloadType,
};
use transload_executor::Executor;

use super::{
    Method, Route, Submitted, Topology, TransferRequest,
    host_staged::{start_staged, start_threads},
};
use crate::{
    attempt::NotSubmitted,
    planning::request::PlanInput,
    staging::{EVEN_CHUNKS, StagedKind, StagingRing, chunks_of, default_workers},
};

pub(super) struct UnifiedMemory {
    executor: Executor,
    /// Bounds concurrent chunks. Has no staging memory.
    ring: Arc<StagingRing>,
}

impl UnifiedMemory {
    pub(super) fn new(executor: Executor) -> Self {
        let ring = Arc::new(StagingRing::without_memory(&executor, default_workers()));
        Self { executor, ring }
    }
}

fn is_unified(place: Place) -> bool {
    place.kind == MemoryKind::Unified
}

impl Method for UnifiedMemory {
    fn method(&self) -> TransferMethod {
        TransferMethod::UnifiedMemory
    }

    fn applicable(&self, path: TransferPath, topology: &Topology<'_>) -> Result<Route, RejectReason> {
        let TransferPath { src, dst } = path;
        let (unified, other) = match (is_unified(src), is_unified(dst)) {
            (true, _) => (src, dst),
            (false, true) => (dst, src),
            (false, false) => return Err(RejectReason::NotUnified),
        };
        // Copies between devices are for other methods.
        if !other.device.is_cpu() && other.device != unified.device {
            return Err(RejectReason::NoQueue);
        }
        let beside = topology
            .registered(unified.device)
            .and_then(|registered| registered.device(unified.device))
            .is_some_and(|info| info.concurrent_managed_access);
        if !beside {
            return Err(RejectReason::NoConcurrentAccess);
        }
        topology.route(unified.device).ok_or(RejectReason::NoQueue)
    }

    fn chunks(&self, route: &Route, input: &PlanInput) -> u32 {
        if input.path.src.device == route.lane && input.path.dst.device == route.lane {
            return 1;
        }
        chunks_of(input.bytes, Some(EVEN_CHUNKS))
    }

    fn is_of_one_queue(&self, path: TransferPath) -> bool {
        !path.src.device.is_cpu() && !path.dst.device.is_cpu()
    }

    /// Host threads copy, and the driver migrates pages: no copy engine is used.
    fn queued(&self, _: &Route, _: u64) -> u64 {
        0
    }

    fn submit(&self, route: &Route, request: &TransferRequest<'_>) -> Result<Submitted, NotSubmitted> {
        let (src, dst) = (request.src, request.dst);
        let by_workers = || request.lease_for_workers(&*route.backend, route.lane, WorkloadType::Memory);
        let kind = match (src.place().device, dst.place().device) {
            (DeviceId::Cpu, _) => StagedKind::ToUnified(by_workers()?),
            (_, DeviceId::Cpu) => StagedKind::FromUnified(by_workers()?),
            // Within the device: prefetch the unified side, then copy device memory.
            _ => {
                if request.turns().is_some() {
                    // Return conflicts before any page moves. A later conflict only repeats the prefetch.
                    drop(request.claim()?);
                }
                let queue = request.queue(&*route.backend, route.lane, WorkloadType::Memory)?;
                for side in [src, dst].into_iter().filter(|side| is_unified(side.place())) {
                    let move_there = Operation::Prefetch { buffer: side, to: route.lane };
                    request.enqueue(&*queue, &move_there, Timing::Off)?;
                }
                return request.enqueue(&*queue, &Operation::Copy { src, dst }, request.timing);
            }
        };
        let backends = smallvec![Arc::clone(&route.backend)];
        start_staged(self.ring.hold(false)?, request, kind, backends, route.lane)
    }

    fn start(&self, _: &Route) -> Result<()> {
        start_threads(&self.executor)
    }

    fn drain(&self) -> Result<()> {
        self.executor.drain()
    }
}
