//! One side is memory that migrates, prefetched to where it is needed. Not implemented yet.

use transload_core::{MemoryKind, RejectReason, Result, TransferMethod, TransferPath};

use super::{Context, Method, Route};

#[derive(Debug)]
pub(super) struct UnifiedMemory;

impl Method for UnifiedMemory {
    fn method(&self) -> TransferMethod {
        TransferMethod::UnifiedMemory
    }

    fn applicable(&self, path: TransferPath, _: &Context<'_>) -> Result<Route, RejectReason> {
        let migrates = [path.src, path.dst].iter().any(|place| place.kind == MemoryKind::Unified);
        Err(if migrates { RejectReason::NotImplemented } else { RejectReason::NotUnified })
    }
}
