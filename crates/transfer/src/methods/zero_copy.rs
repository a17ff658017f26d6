//! A copy kernel that accesses the host's memory in place; where a device's memory is the host's own, the host's threads, which access
//! the device's in place. Neither uses a copy engine, so queued copies do not delay it.

use transload_core::{
    BlockList, ErrorKind, Operation, RawBuffer, RejectReason, Result, TransferMethod, TransferPath,
    WorkloadType,
};

use crate::{attempt::NotSubmitted, planning::request::PlanInput};

use super::{
    Declined, Method, Route, SingleOperation, Submitted, Topology, TransferRequest,
    direct_copy::COPIED_IN_PASSING,
};

#[derive(Debug)]
pub(super) struct ZeroCopy;

impl Method for ZeroCopy {
    fn method(&self) -> TransferMethod {
        TransferMethod::ZeroCopy
    }

    fn queued(&self, route: &Route, bytes: u64) -> u64 {
        if route.lane.is_cpu() { bytes } else { 0 }
    }

    fn applicable(&self, path: TransferPath, topology: &Topology<'_>) -> Result<Route, RejectReason> {
        let (src, dst) = (path.src.device, path.dst.device);
        if src == dst {
            // Copies within a device use no copy engine anyway.
            return Err(if src.is_cpu() { RejectReason::NoDevice } else { RejectReason::SameDevice });
        }
        topology.in_place_copier(path).ok_or(RejectReason::NotMapped)
    }

    /// Loads the kernel. If the driver does not support it, the path is left to other methods. Other errors may be
    /// temporary; the submission will return them.
    fn prepare(&self, _: &TransferPath, route: &Route) -> Result<(), Declined> {
        match route.backend.prepare_in_place(route.lane) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                Err(Declined::Permanently(RejectReason::NoKernel))
            }
            _ => Ok(()),
        }
    }

    /// The host's queue copies on the calling thread, as for DirectCopy.
    fn copies_during_call(&self, route: &Route, input: &PlanInput) -> bool {
        route.lane.is_cpu() && input.bytes > COPIED_IN_PASSING
    }

    fn single_operation(&self, _: TransferPath) -> Option<SingleOperation> {
        Some(|src, dst| Operation::CopyInPlace { src, dst })
    }

    fn submit(&self, route: &Route, request: &TransferRequest<'_>) -> Result<Submitted, NotSubmitted> {
        if let Some(rows) = request.rows() {
            return self.submit_many(route, request, &rows.pairs(request.src, request.dst)?);
        }
        // On a queue of kernels it neither waits for copies nor delays them.
        let queue = request.queue(&*route.backend, route.lane, WorkloadType::Compute)?;
        request.enqueue(
            &*queue,
            &Operation::CopyInPlace { src: request.src, dst: request.dst },
            request.timing,
        )
    }

    fn takes_many(&self, _: &TransferPath) -> bool {
        true
    }

    fn submit_blocks(
        &self,
        route: &Route,
        request: &TransferRequest<'_>,
        blocks: &BlockList,
    ) -> Result<Option<Submitted>, NotSubmitted> {
        request.enqueue_blocks(route, blocks)
    }

    fn submit_many(
        &self,
        route: &Route,
        request: &TransferRequest<'_>,
        pairs: &[(RawBuffer, RawBuffer)],
    ) -> Result<Submitted, NotSubmitted> {
        let queue = request.queue(&*route.backend, route.lane, WorkloadType::Compute)?;
        request.enqueue(&*queue, &Operation::CopyBatchInPlace { pairs }, request.timing)
    }
}
