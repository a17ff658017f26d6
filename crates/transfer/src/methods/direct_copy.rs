//! A single copy operation on one queue.

use std::sync::Arc;

use transload_core::{
    ErrorKind, Fence, HalfPairs, MemoryKind, Operation, Place, RejectReason, Result, Timing, TransferMethod,
    TransferPath, WorkloadType, copy_on_host,
};

use crate::{
    attempt::NotSubmitted,
    planning::request::PlanInput,
    strided::{MAX_LISTED, Rows},
};

use super::{
    Method, Route, SingleOperation, Submitted, Topology, TransferRequest, device_scratch::DeviceScratch,
};

/// Up to how many bytes a task's thread copies from host to host itself: some 10 µs.
pub(super) const COPIED_IN_PASSING: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct DirectCopy {
    pub(super) scratch: Arc<DeviceScratch>,
}

impl Method for DirectCopy {
    fn method(&self) -> TransferMethod {
        TransferMethod::DirectCopy
    }

    fn applicable(&self, path: TransferPath, topology: &Topology<'_>) -> Result<Route, RejectReason> {
        let mut route = topology.copier(path).ok_or(RejectReason::NoQueue)?;
        // Within a device it uses no memory of the host.
        route.has_kernel = path.src.device == path.dst.device
            && route.backend.in_place_copier(path.src, path.dst) == Some(route.lane);
        Ok(route)
    }

    /// Copies of pageable memory run on the host and cannot be recorded.
    fn single_operation(&self, path: TransferPath) -> Option<SingleOperation> {
        let by_host = [path.src, path.dst].iter().any(|place| place.kind == MemoryKind::Pageable);
        (!by_host).then_some(|src, dst| Operation::Copy { src, dst })
    }

    /// The host's queue copies up to some MiB on the calling thread, and a driver copies pageable memory during the call, after what
    /// its queue has to do; one that copies from or to another family's device waits for that during the call.
    fn copies_during_call(&self, route: &Route, input: &PlanInput) -> bool {
        let TransferPath { src, dst } = input.path;
        let is_pageable = |place: Place| place.device.is_cpu() && place.kind == MemoryKind::Pageable;
        if route.lane.is_cpu() {
            input.bytes > COPIED_IN_PASSING
        } else {
            let are_two_devices = src.device != dst.device && !src.device.is_cpu() && !dst.device.is_cpu();
            is_pageable(src) || is_pageable(dst) || are_two_devices
        }
    }

    /// Leases a queue for each transfer only, so that the backend can balance transfers over its queues.
    fn submit(&self, route: &Route, request: &TransferRequest<'_>) -> Result<Submitted, NotSubmitted> {
        if let Some(rows) = request.rows() {
            return self.submit_rows(route, request, rows);
        }
        if request.src.len() <= route.at_once
            && request
                .extras
                .is_none_or(|extras| extras.queue.is_none() && extras.after.iter().all(Fence::is_complete))
            && let Some(took) = copy_on_host(request.src, request.dst, request.timing)?
        {
            return Ok(Submitted::Complete((request.timing == Timing::Measured).then_some(took)));
        }
        let queue = request.queue(&*route.backend, route.lane, WorkloadType::Memory)?;
        request.enqueue(&*queue, &Operation::Copy { src: request.src, dst: request.dst }, request.timing)
    }

    /// A driver copies pageable memory during the call, and unified memory may have to be moved first.
    fn takes_many(&self, path: &TransferPath) -> bool {
        let is_fixed = |place: &Place| {
            matches!(place.kind, MemoryKind::Device | MemoryKind::Pinned | MemoryKind::Mapped)
        };
        let TransferPath { src, dst } = path;
        (is_fixed(src) && is_fixed(dst)) || (src.device.is_cpu() && dst.device.is_cpu())
    }

    fn submit_through_device(
        &self,
        route: &Route,
        request: &TransferRequest<'_>,
        pairs: HalfPairs<'_>,
    ) -> Result<Option<Submitted>, NotSubmitted> {
        self.scratch.submit(route, request, pairs)
    }

    fn drain(&self) -> Result<()> {
        self.scratch.release();
        Ok(())
    }
}

impl DirectCopy {
    /// As one operation if it can copy the rows, else, or if the queue has no such operation, as a list.
    #[cold]
    fn submit_rows(
        &self,
        route: &Route,
        request: &TransferRequest<'_>,
        rows: &Rows,
    ) -> Result<Submitted, NotSubmitted> {
        let (src, dst) = (request.src, request.dst);
        if let Some(pitched) = rows.pitched() {
            let queue = request.queue(&*route.backend, route.lane, WorkloadType::Memory)?;
            let operation = Operation::CopyPitched { src, dst, rows: pitched };
            match request.enqueue(&*queue, &operation, request.timing) {
                Err(NotSubmitted::Failed(error))
                    if error.kind() == ErrorKind::Unsupported && rows.count() <= MAX_LISTED => {}
                outcome => return outcome,
            }
        }
        // Within a device a copy engine takes about a microsecond for each row.
        let request = TransferRequest { by_kernel: route.has_kernel, ..*request };
        self.submit_many(route, &request, &rows.pairs(src, dst)?)
    }
}
