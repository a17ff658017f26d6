//! Non-blocking submission, for tasks: returns or awaits what would block the thread.

use std::{
    ptr,
    time::{Duration, Instant},
};

use crate::{
    Access, Claims, DeviceId, Fence, MemoryKind, Operation, Place, Queue, RawBuffer, Result, Timing,
    hazard::WakeList,
    host::host_access::{self, HostAccess},
    queue::room::full_until,
    submit::claim::{WriteMode, in_stream_order, is_ordered_by},
    submit::unblocked::{TrySubmitError, Turns, Unblocked},
};

/// Like [`submit`](crate::submit), but returns an error if the host would have to wait for work in flight:
/// * while another thread is between claim and commit on a conflicting range,
/// * while a waiter for such a range that was overtaken 16 times has its turn,
/// * for conflicting work that the queue cannot wait for; for that of the host also if a device's queue uses
///   unified memory,
/// * for any conflicting work if a device's queue copies pageable memory, since its driver may do so during
///   the call,
/// * while some hundred operations are in flight on a device's queue ([`full_until`]), since its driver may be
///   unable to take another.
///
/// The driver itself may still take time during the call, to copy pageable memory.
///
/// # Errors
/// [`TrySubmitError::WouldBlock`]; [`TrySubmitError::Failed`] with the errors of `submit`. Unless the error
/// [is partial](crate::Error::is_partial), nothing was enqueued then; else a part of the operation, or all of it, was done, and is over.
pub fn try_submit(
    queue: &dyn Queue,
    operation: &Operation<'_>,
    timing: Timing,
    turns: &Turns,
) -> Result<Fence, TrySubmitError> {
    try_submit_after(queue, operation, &[], timing, turns)
}

/// Like [`try_submit`], but the operation also takes effect after the fences in `after`, whether their work succeeds or fails. Those
/// that the queue cannot wait for block it too.
///
/// # Errors
/// As for `try_submit`.
pub fn try_submit_after(
    queue: &dyn Queue,
    operation: &Operation<'_>,
    after: &[Fence],
    timing: Timing,
    turns: &Turns,
) -> Result<Fence, TrySubmitError> {
    operation.validate()?;
    if let Some(room) = full_until(queue).filter(|_| !crate::mutant!("core/task-awaits-room")) {
        return Err(Unblocked::fences(vec![room]).into());
    }
    let mut uses = operation.uses();
    let pageable = uses.iter().any(|(buffer, _)| {
        let place = buffer.place();
        place.device.is_cpu()
            && place.kind == MemoryKind::Pageable
            && !buffer.is_registered_for(queue.device())
    });
    let during_call = pageable && !queue.device().is_cpu();
    let in_order = in_stream_order(uses.iter().map(|(buffer, _)| *buffer));
    let for_queue = |fence: &Fence| !during_call && is_ordered_by(queue, fence, || in_order);
    // Before the claims, so that no one waits for a claim that waits for these.
    require_complete(after, for_queue)?;
    let mut claims = Claims::none(operation.write_mode());
    claims.attempt(&mut uses, None, Some(turns))?;
    claims.wait_also(after);
    if let Err(blocked) = claims.require_queue_can_wait(for_queue) {
        if let TrySubmitError::WouldBlock(obstacle) = &blocked {
            turns.keep_all(&uses, obstacle.until());
        }
        return Err(blocked);
    }
    claims.enqueue(queue, operation, timing).map_err(TrySubmitError::Failed)
}

/// Fails with the fences that are not complete, except those for which `can_wait` holds.
///
/// # Errors
/// [`TrySubmitError::WouldBlock`] by those fences.
pub fn require_complete(after: &[Fence], can_wait: impl Fn(&Fence) -> bool) -> Result<(), TrySubmitError> {
    let open = after.iter().filter(|fence| !can_wait(fence) && !fence.is_complete());
    let open: Vec<Fence> = open.cloned().collect();
    if open.is_empty() { Ok(()) } else { Err(Unblocked::fences(open).into()) }
}

/// Up to this many bytes of pageable memory are copied under the tables' locks. The copy may fault on two
/// pages of each buffer; threads that spin on a lock yield meanwhile.
const UNDER_LOCK: usize = 4096;

/// Copies all of `src` to `dst` immediately, on the calling thread and without a queue, in order with all
/// other work on the two buffers. Returns how long that took, by the host's clock if `timing` is measured and
/// else zero; `None` if nothing was copied, since it would have to wait or the host cannot address both. For
/// memory of which a backend says that this is [faster than a queue](crate::Backend::host_copy_limit).
///
/// # Errors
/// Those of `submit`; then nothing was copied.
pub fn copy_on_host(src: &RawBuffer, dst: &RawBuffer, timing: Timing) -> Result<Option<Duration>> {
    Operation::Copy { src, dst }.validate()?;
    let (Some(from), Some(to)) = (src.host_address(), dst.host_address()) else { return Ok(None) };
    let copy = || {
        let begun = (timing == Timing::Measured).then(Instant::now);
        // SAFETY: the lengths agree, and `dst` is writable. Called only if nothing conflicting is in flight,
        // while both locks or claims block conflicting work. Two buffers may wrap the same foreign bytes, so
        // the ranges may overlap.
        unsafe { ptr::copy(from.as_ptr(), to.as_ptr(), src.len()) };
        begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    };
    let is_pageable = |of: &RawBuffer| of.place() == Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    if host_access::hook().is_none() {
        let took = if src.len() <= UNDER_LOCK && is_pageable(src) && is_pageable(dst) {
            src.hazards().copy_if_free(&src.range(), (dst.hazards(), &dst.range()), copy)
        } else {
            copy_if_unused(src, dst, copy)
        };
        if took.is_some() {
            return Ok(took);
        }
    }
    let mut claims = Claims::none(WriteMode::Replace);
    match claims.attempt(&mut [(src, Access::Read), (dst, Access::Write)], None, None) {
        Ok(()) if claims.have_no_predecessors() || crate::mutant!("core/short-copy-waits") => {}
        Ok(()) | Err(TrySubmitError::WouldBlock(_)) => return Ok(None),
        Err(TrySubmitError::Failed(error)) => return Err(error),
    }
    host_access::note(from.as_ptr().addr(), src.len(), HostAccess::Read);
    host_access::note(to.as_ptr().addr(), dst.len(), HostAccess::Write);
    [src, dst].into_iter().for_each(|buffer| buffer.record_use_by(DeviceId::Cpu));
    let took = copy();
    claims.complete();
    Ok(Some(took))
}

/// Claims both ranges and copies, if neither is in use. Does what [`Claims`] do in that case, at less cost. `copy` must not panic. A
/// call of its own, so that copies under the locks stay short.
#[inline(never)]
fn copy_if_unused<T>(src: &RawBuffer, dst: &RawBuffer, copy: impl FnOnce() -> T) -> Option<T> {
    let ((source, from), (target, to)) = ((src.hazards(), src.range()), (dst.hazards(), dst.range()));
    let mut wake_list = WakeList::default();
    let read = source.claim_if_free(&from, Access::Read)?;
    let Some(written) = target.claim_if_free(&to, Access::Write) else {
        if !crate::mutant!("core/short-copy-withdraws") {
            source.withdraw(&from, read, &mut wake_list);
        }
        wake_list.wake();
        return None;
    };
    [src, dst].into_iter().for_each(|buffer| buffer.record_use_by(DeviceId::Cpu));
    let took = copy();
    source.complete(&from, read, &mut wake_list);
    target.complete(&to, written, &mut wake_list);
    wake_list.wake();
    Some(took)
}

/// Like [`submit`](crate::submit), but for tasks: waits by wakers, under any executor, where `submit` blocks.
/// Completes when the operation is enqueued. If the future is dropped before, nothing was enqueued. A waiter that others have often overtaken goes
/// first: unlike a thread, a task lets it do so for as long as that one's work takes, which must not depend on what the task does next.
///
/// # Errors
/// Those of `submit`.
pub async fn submit_async(queue: &dyn Queue, operation: &Operation<'_>, timing: Timing) -> Result<Fence> {
    let turns = Turns::default();
    loop {
        match try_submit(queue, operation, timing, &turns) {
            Ok(fence) => return Ok(fence),
            Err(TrySubmitError::Failed(error)) => return Err(error),
            Err(TrySubmitError::WouldBlock(obstacle)) => obstacle.await,
        }
    }
}
