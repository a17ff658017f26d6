//! Short uploads of pageable memory: the thread that submits copies into a staging buffer, and enqueues the one copy from there. The
//! bookkeeping of a staged transfer would take about as long as the bytes.

use std::time::Instant;

use transload_core::{Claims, Fence, Operation, Queue, Result, Submitted, Timing};

use super::{Route, TransferRequest};
use crate::staging::{LentBuffer, SHORT_PART, StagingRings, Stores, has_room, host_copy, host_pointer};

/// Returns a staging buffer for a transfer that may be one, unless none is free.
pub(super) fn lend(rings: &StagingRings, route: &Route, request: &TransferRequest<'_>) -> Option<LentBuffer> {
    let src = request.src;
    let may_be = src.len() <= SHORT_PART
        && src.place().device.is_cpu()
        && route.second.is_none()
        && !request.by_kernel
        // The queue's own time is not all, so the transfer is waited for.
        && (request.timing == Timing::Off || request.waits());
    if may_be { rings.get(route.lane)?.lend() } else { None }
}

/// Returns whether the transfer, of which these are the claims, need not wait for anything.
pub(super) fn is_ready(queue: &dyn Queue, request: &TransferRequest<'_>, claims: &Claims<'_>) -> bool {
    let are_over = |fences: &[Fence]| fences.iter().all(Fence::is_known_complete);
    are_over(claims.after()) && are_over(request.after()) && has_room(queue)
        || transload_core::mutant!("transfer/short-upload-waits")
}

/// Submits a transfer that is ready, and commits its fence.
///
/// # Errors
/// The queue's; nothing is enqueued then.
pub(super) fn submit(
    mut lent: LentBuffer,
    queue: &dyn Queue,
    request: &TransferRequest<'_>,
    claims: Claims<'_>,
) -> Result<Submitted> {
    let (src, dst) = (request.src, request.dst);
    let (staged, address) = lent.slice(src.len())?;
    let begun = (request.timing == Timing::Measured).then(Instant::now);
    host_copy(host_pointer(src, 0)?, address.as_ptr(), src.len(), Stores::Streaming);
    let operation = Operation::Copy { src: &staged, dst };
    // SAFETY: the buffers are claimed until the fence is committed, and the staging buffer is lent until it is complete; the lengths are
    // equal.
    let fence = unsafe { queue.enqueue(&operation, &[], Timing::Off) }?;
    lent.until(&fence);
    let end = claims.inherit(fence.clone());
    // SAFETY: the host's copy is over, all earlier work is complete, and the fence completes after the device's copy.
    unsafe { claims.commit(&end) };
    Ok(match begun {
        // Else the fence has the error.
        Some(begun) if fence.wait().is_ok() => Submitted::Complete(Some(begun.elapsed())),
        _ => Submitted::Until(end),
    })
}
