//! The device copies by its own processors, which use the host's memory where it is: no copy engine takes part, so a queue
//! of copies does not hold it up.

use transload_core::{
    ErrorKind, Operation, RejectReason, Result, TransferMethod, TransferPath, TrySubmitError, WorkloadType,
};

use super::{Declined, Method, Route, SingleOperation, Submitted, Topology, TransferRequest};

#[derive(Debug)]
pub(super) struct ZeroCopy;

impl Method for ZeroCopy {
    fn method(&self) -> TransferMethod {
        TransferMethod::ZeroCopy
    }

    fn is_in_place(&self) -> bool {
        true
    }

    fn queued(&self, _: u64) -> u64 {
        0
    }

    fn applicable(&self, path: TransferPath, topology: &Topology<'_>) -> Result<Route, RejectReason> {
        let (src, dst) = (path.src.device, path.dst.device);
        if src == dst {
            // Between two places of one device every copy is by the device itself.
            return Err(if src.is_cpu() { RejectReason::NoDevice } else { RejectReason::SameDevice });
        }
        topology.in_place_copier(path).ok_or(RejectReason::NotMapped)
    }

    /// Has the kernel loaded. A driver that does not take it leaves the path to the other methods; any other error may be
    /// of the moment, and is told by the submission, which meets it again.
    fn prepare(&self, _: TransferPath, route: &Route) -> Result<(), Declined> {
        match route.backend.prepare_in_place(route.lane) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                Err(Declined::Permanently(RejectReason::NoKernel))
            }
            _ => Ok(()),
        }
    }

    fn single_operation(&self, _: TransferPath) -> Option<SingleOperation> {
        Some(|src, dst| Operation::CopyInPlace { src, dst })
    }

    fn submit(&self, route: &Route, request: &TransferRequest<'_>) -> Result<Submitted, TrySubmitError> {
        // A kernel: on a queue of kernels it neither waits for copies nor holds them up.
        let workload = request.workload.unwrap_or(WorkloadType::Compute);
        let queue = route.backend.lease_queue(route.lane, request.priority, workload)?;
        request.enqueue(
            &*queue,
            &Operation::CopyInPlace { src: request.src, dst: request.dst },
            request.timing,
        )
    }
}
