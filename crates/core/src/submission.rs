//! Submission for tasks: what would block the thread is answered, or awaited, instead.

use crate::{
    Claims, Fence, MemoryKind, Operation, Queue, Result, Timing,
    obstacle::{Turns, Unsubmitted},
};

/// As [`submit`](crate::submit), but never blocks on work in flight: where the host would have to wait, that is answered.
/// The host would have to wait
/// * while another thread is between its claim and its commit on a range in conflict,
/// * while a waiter for such a range that was overtaken 16 times has its turn,
/// * for conflicting work that the queue cannot wait for by itself,
/// * for any conflicting work where a device's queue copies pageable memory, since its driver may do so during the call.
///
/// The call itself still takes the time of the driver's own: to copy pageable memory, or to find room in a queue that
/// has some thousand operations in flight.
///
/// # Errors
/// [`Unsubmitted::Blocked`]; [`Unsubmitted::Refused`] with the errors of `submit`. Nothing was enqueued then.
pub fn try_submit(
    queue: &dyn Queue,
    operation: &Operation<'_>,
    timing: Timing,
) -> Result<Fence, Unsubmitted> {
    try_in_turn(queue, operation, timing, &mut Turns::default(), false)
}

fn try_in_turn(
    queue: &dyn Queue,
    operation: &Operation<'_>,
    timing: Timing,
    turns: &mut Turns,
    waits: bool,
) -> Result<Fence, Unsubmitted> {
    operation.validate()?;
    let mut uses = operation.uses();
    let pageable = uses
        .iter()
        .any(|(buffer, _)| buffer.place().device.is_cpu() && buffer.place().kind == MemoryKind::Pageable);
    let during_call = pageable && !queue.device().is_cpu();
    let mut claims = Claims::none_keeping(operation.keeps_content());
    claims.attempt(&mut uses, None, Some(turns))?;
    if let Err(blocked) = claims.leave_to_queue(|fence| !during_call && queue.can_wait_for(fence)) {
        if let (true, Unsubmitted::Blocked(obstacle)) = (waits, &blocked) {
            turns.wait_behind(&uses, obstacle.until());
        }
        return Err(blocked);
    }
    // SAFETY: the claims keep every conflicting use away until the fence is committed, and the fence keeps them away and
    // the memory alive from then on.
    let fence = claims.inherit(unsafe { queue.enqueue(operation, claims.after(), timing) }?);
    operation.note_where_it_sends();
    // SAFETY: a queue's fence is over after the operation, which it puts behind `after`; what was taken out of that was
    // over.
    unsafe { claims.commit(&fence) };
    Ok(fence)
}

/// As [`submit`](crate::submit) for a task: waits by wakers, under any executor, where `submit` would block the thread.
/// Answers once the operation is enqueued. Dropped before that, nothing was enqueued.
///
/// # Errors
/// Those of `submit`.
pub async fn submit_async(queue: &dyn Queue, operation: &Operation<'_>, timing: Timing) -> Result<Fence> {
    let mut turns = Turns::default();
    loop {
        match try_in_turn(queue, operation, timing, &mut turns, true) {
            Ok(fence) => return Ok(fence),
            Err(Unsubmitted::Refused(error)) => return Err(error),
            Err(Unsubmitted::Blocked(mut obstacle)) => {
                turns.wait_for(&mut obstacle);
                obstacle.await;
            }
        }
    }
}
