//! The device uses the bytes where they are. Not implemented yet.

use transload_core::{MemoryKind, RejectReason, Result, TransferMethod, TransferPath};

use super::{Context, Method, Route};

#[derive(Debug)]
pub(super) struct ZeroCopy;

impl Method for ZeroCopy {
    fn method(&self) -> TransferMethod {
        TransferMethod::ZeroCopy
    }

    fn applicable(&self, path: TransferPath, _: &Context<'_>) -> Result<Route, RejectReason> {
        let (src, dst) = (path.src, path.dst);
        let visible = |kind| matches!(kind, MemoryKind::Mapped | MemoryKind::Unified);
        Err(if src.device.is_cpu() && dst.device.is_cpu() {
            RejectReason::NoDevice
        } else if visible(src.kind) || visible(dst.kind) {
            RejectReason::NotImplemented
        } else if src.device == dst.device {
            RejectReason::SameDevice
        } else {
            RejectReason::NotShareable
        })
    }
}
