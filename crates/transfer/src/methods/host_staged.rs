//! Through pinned host memory in chunks. Not implemented yet.

use transload_core::{RejectReason, Result, TransferMethod, TransferPath};

use super::{Context, Method, Route};

#[derive(Debug)]
pub(super) struct HostStaged;

impl Method for HostStaged {
    fn method(&self) -> TransferMethod {
        TransferMethod::HostStaged
    }

    fn applicable(&self, path: TransferPath, _: &Context<'_>) -> Result<Route, RejectReason> {
        let (src, dst) = (path.src.device, path.dst.device);
        Err(match src == dst {
            true if src.is_cpu() => RejectReason::NoDevice,
            true => RejectReason::SameDevice,
            false => RejectReason::NotImplemented,
        })
    }
}
