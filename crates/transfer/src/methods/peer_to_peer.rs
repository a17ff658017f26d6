//! Between devices without the host, or from the host over other devices' links. Not implemented yet.

use transload_core::{RejectReason, Result, TransferMethod, TransferPath};

use super::{Context, Method, Route};

#[derive(Debug)]
pub(super) struct PeerToPeer;

impl Method for PeerToPeer {
    fn method(&self) -> TransferMethod {
        TransferMethod::PeerToPeer
    }

    fn applicable(&self, path: TransferPath, context: &Context<'_>) -> Result<Route, RejectReason> {
        let (src, dst) = (path.src.device, path.dst.device);
        let reachable = match (src.is_cpu(), dst.is_cpu()) {
            (true, true) => return Err(RejectReason::NoDevice),
            (false, false) if src == dst => return Err(RejectReason::SameDevice),
            (false, false) => context.are_peers(src, dst) || context.are_peers(dst, src),
            (true, false) => context.has_peer(dst),
            (false, true) => context.has_peer(src),
        };
        Err(if reachable { RejectReason::NotImplemented } else { RejectReason::NoPeerAccess })
    }
}
