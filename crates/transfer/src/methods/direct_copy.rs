//! A single copy operation on one queue.

use transload_core::{
    MemoryKind, Operation, RejectReason, Result, Timing, TransferMethod, TransferPath, TrySubmitError,
    copy_on_host,
};

use super::{Method, Route, SingleOperation, Submitted, Topology, TransferRequest};

#[derive(Debug)]
pub(super) struct DirectCopy;

impl Method for DirectCopy {
    fn method(&self) -> TransferMethod {
        TransferMethod::DirectCopy
    }

    fn applicable(&self, path: TransferPath, topology: &Topology<'_>) -> Result<Route, RejectReason> {
        topology.copier(path).ok_or(RejectReason::NoQueue)
    }

    /// Copies of pageable memory run on the host and cannot be recorded.
    fn single_operation(&self, path: TransferPath) -> Option<SingleOperation> {
        let by_host = [path.src, path.dst].iter().any(|place| place.kind == MemoryKind::Pageable);
        (!by_host).then_some(|src, dst| Operation::Copy { src, dst })
    }

    /// Leases a queue for each transfer only, so that the backend can balance transfers over its queues.
    fn submit(&self, route: &Route, request: &TransferRequest<'_>) -> Result<Submitted, TrySubmitError> {
        if request.src.len() <= route.at_once
            && let Some(took) = copy_on_host(request.src, request.dst, request.timing)?
        {
            return Ok(Submitted::Complete((request.timing == Timing::Measured).then_some(took)));
        }
        let queue = request.lease_to_copy(&*route.backend, route.lane)?;
        request.enqueue(&*queue, &Operation::Copy { src: request.src, dst: request.dst }, request.timing)
    }
}
