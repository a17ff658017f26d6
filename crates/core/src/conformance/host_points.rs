//! Promises between a device and work that ends by threads of the host alone: the one waits for the other.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use parking_lot::Mutex;

use super::{
    CheckResult, Failure, Verdict,
    context::{self, TestContext, TestMemory, joined},
    gate::Gate,
};
use crate::{
    Operation, QueueLease, RawBuffer, Result as CoreResult, Timing, submit,
    submit::claim::{can_order, in_stream_order},
};

fn copy(queue: &QueueLease, src: &RawBuffer, dst: &RawBuffer) -> CoreResult<crate::Fence> {
    submit(&**queue, &Operation::Copy { src, dst }, Timing::Off)
}

pub(super) fn host_points(context: &TestContext<'_>) -> CheckResult {
    let trips = context.round_trips();
    for trip in trips.iter().copied() {
        waited_for(context, trip)?;
        signalled(context, trip)?;
    }
    Ok(Verdict::passed_if(!trips.is_empty(), "no memory is copied both to and from the host"))
}

/// The device's queues wait for the host's work, without blocking their submitter where they say so.
fn waited_for(context: &TestContext<'_>, (host, there): (TestMemory, TestMemory)) -> Result<(), Failure> {
    let bytes = context.size(70_001);
    let content = context.rng("host points").bytes(bytes);
    let source = context.buffer_of(host, &content)?;
    let between = context.buffer_of(host, &vec![1; bytes])?;
    let middle = context.buffer_of(there, &vec![2; bytes])?;
    let back = context.buffer_of(host, &vec![3; bytes])?;
    let (queues, gate) = (context.queues()?, Gate::of_host(context.subject.wake_timeout));
    let until = submit(&gate, &Operation::Copy { src: &source, dst: &between }, Timing::Off)?;
    // Before the submission: what the queue needs for that is reserved then, and may be in use at another time.
    let waits = can_order(&*queues[0], &until, || in_stream_order([&between, &middle].into_iter()));
    let submitted = Mutex::new(None);
    let what = format!("{} → {} → back", host.place, there.place);
    let outcome = thread::scope(|scope| {
        let worker = scope.spawn(|| -> Result<(), Failure> {
            let fence = copy(&queues[0], &between, &middle)?;
            *submitted.lock() = Some(fence);
            copy(&queues[1], &middle, &back)?;
            Ok(())
        });
        let is_blocked = waits && !context.wait_until(|| submitted.lock().is_some());
        context::watch_briefly(|| false);
        let is_early = submitted.lock().as_ref().is_some_and(crate::Fence::is_complete) && !gate.was_forced();
        let was_forced = gate.was_forced();
        gate.open();
        let outcome = joined(worker);
        ensure!(!is_early, "{what}: work is complete before the host's that it comes after");
        ensure!(
            !(is_blocked || waits && was_forced),
            "{what}: a queue that can wait for the host's work blocks who submits"
        );
        outcome
    });
    outcome?;
    context.expect(&back, &content, &format!("{what}, after work of the host"))
}

/// What ends by the host alone signals that it has ended.
fn signalled(context: &TestContext<'_>, (host, there): (TestMemory, TestMemory)) -> Result<(), Failure> {
    let (bytes, queue) = (context.size(3_000_001), context.queue()?);
    let [src, dst] = [context.allocate(host, bytes)?, context.allocate(there, bytes)?];
    let fence = copy(&queue, &src, &dst)?;
    let (timeline, point) = (fence.timeline(), fence.point());
    if !timeline.ends_by_host_alone(point) {
        // A device's work, or complete.
        return Ok(());
    }
    let signals = Arc::new(AtomicUsize::new(0));
    let signal = || {
        let signals = Arc::clone(&signals);
        Box::new(move || {
            signals.fetch_add(1, Ordering::SeqCst);
        })
    };
    timeline.signal_at(point, signal());
    fence.wait()?;
    ensure!(
        context.wait_until(|| signals.load(Ordering::SeqCst) > 0),
        "a point is reached and not signalled"
    );
    timeline.signal_at(point, signal());
    ensure_eq!(signals.load(Ordering::SeqCst), 2, "the number of signals of a point that is reached");
    Ok(())
}
