//! Promises about fences: when work is complete, and how long it took.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use super::{
    CheckResult, Failure, Verdict,
    context::{self, TestContext, joined},
    gate::Gate,
};
use crate::{Fence, Operation, RawBuffer, Timing, submit};

pub(super) fn fences(context: &TestContext<'_>) -> CheckResult {
    let Some((from, to)) = context.paths().first().copied() else {
        return Ok(Verdict::NotApplicable("no path is copied".to_owned()));
    };
    let bytes = context.size(2_500_000);
    let src = context.buffer_of(from, &context.rng("fences").bytes(bytes))?;
    let dst = context.allocate(to, bytes)?;
    let queue = context.queue()?;
    let timeline = queue.timeline();
    ensure_eq!(timeline.device(), context.subject.device, "a timeline's device");
    let done = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        // Another thread polls all the time.
        let look = || {
            let mut last = 0;
            while !done.load(Ordering::Acquire) {
                let now = timeline.reached();
                ensure!(now >= last, "a timeline went back from {last} to {now}");
                last = now;
                thread::yield_now();
            }
            Ok(())
        };
        let watcher = scope.spawn(look);
        let outcome = in_order(context, &queue, &src, &dst);
        done.store(true, Ordering::Release);
        joined(watcher).and(outcome)
    });
    outcome?;
    context.backend().drain()?;
    ensure!(queue.outstanding() == 0, "{} operations are outstanding after a drain", queue.outstanding());
    Ok(Verdict::Passed)
}

fn in_order(
    context: &TestContext<'_>,
    queue: &crate::QueueLease,
    src: &RawBuffer,
    dst: &RawBuffer,
) -> Result<(), Failure> {
    for round in 0..8 {
        let mut fences: Vec<Fence> = Vec::new();
        for part in 0..25 {
            let bytes = if part % 5 == 0 { src.len() } else { 100 };
            let (src, dst) = (src.slice(..bytes)?, dst.slice(..bytes)?);
            let fence = submit(&**queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?;
            ensure!(fence.timeline().id() == queue.timeline().id(), "a fence is of another timeline");
            if let Some(last) = fences.last() {
                ensure!(last.point() < fence.point(), "{fence:?} follows {last:?}");
            }
            fences.push(fence);
        }
        let middle = &fences[12];
        if round % 2 == 0 {
            middle.wait()?;
        } else {
            let over = context.wait_until(|| middle.timeline().poll(middle.point()).unwrap_or(true));
            ensure!(over, "a point that is asked for all the time is never over");
        }
        for fence in &fences[..=12] {
            ensure!(fence.is_known_complete(), "{fence:?} is not known, {middle:?} is over");
            ensure!(fence.timeline().poll(fence.point())?, "{fence:?} is not over any more");
            fence.wait()?;
        }
        fences.iter().rev().try_for_each(Fence::wait)?;
        ensure!(fences.iter().all(Fence::is_complete), "a point that was waited for is not over");
    }
    Ok(())
}

pub(super) fn held_fences(context: &TestContext<'_>) -> CheckResult {
    let mut any = false;
    for (host, there) in context.round_trips() {
        let content = context.rng("held fences").bytes(context.size(70_000));
        let source = context.buffer_of(host, &content)?;
        let first = context.buffer_of(host, &vec![1; content.len()])?;
        let middle = context.buffer_of(there, &vec![2; content.len()])?;
        let back = context.buffer_of(host, &vec![3; content.len()])?;
        let queues = context.queues()?;
        let gate = Gate::closed(context.subject.wake_timeout);
        let gated = submit(&gate, &Operation::Copy { src: &source, dst: &first }, Timing::Off)?;
        if !queues.iter().all(|queue| queue.can_wait_for(&gated)) {
            continue;
        }
        any = true;
        let there = submit(&*queues[0], &Operation::Copy { src: &first, dst: &middle }, Timing::Off)?;
        let here = submit(&*queues[1], &Operation::Copy { src: &middle, dst: &back }, Timing::Off)?;
        for fence in [&there, &here] {
            let over = context::watch_briefly(|| {
                fence.is_known_complete() || fence.timeline().poll(fence.point()).unwrap_or(true)
            });
            ensure!(!over, "{fence:?} is over before what it must come after");
        }
        ensure!(back.try_read().is_err(), "bytes that are being written can be viewed");
        let (early, waiting) = returns_while_held(&here)?;
        ensure!(!early, "a wait for {here:?} returns before that is over");
        gate.open();
        ensure!(!gate.was_forced(), "somebody waited where nobody may");
        here.wait()?;
        waiting.join().map_err(|panic| Failure::panicked(panic))?;
        ensure!(there.is_complete(), "what came before is not over");
        context.expect(&back, &content, "bytes that were held up")?;
    }
    Ok(Verdict::passed_if(any, "the queues do not wait for strangers' fences: their submitter does"))
}

/// Returns whether a wait for blocked work returns, and the thread that waits.
fn returns_while_held(fence: &Fence) -> Result<(bool, JoinHandle<()>), Failure> {
    let (begun, returned) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (theirs, flags) = (fence.clone(), (Arc::clone(&begun), Arc::clone(&returned)));
    let wait = move || {
        flags.0.store(true, Ordering::Release);
        let _told_elsewhere = theirs.wait();
        flags.1.store(true, Ordering::Release);
    };
    let waiting = thread::spawn(wait);
    while !begun.load(Ordering::Acquire) {
        thread::yield_now();
    }
    // Waiting for complete work returns at once.
    Ok((context::watch_briefly(|| returned.load(Ordering::Acquire)), waiting))
}

pub(super) fn durations(context: &TestContext<'_>) -> CheckResult {
    let Some((from, to)) = context.paths().first().copied() else {
        return Ok(Verdict::NotApplicable("no path is copied".to_owned()));
    };
    let bytes = context.size(1 << 20);
    let (src, dst) = (context.buffer_of(from, &vec![1; bytes])?, context.allocate(to, bytes)?);
    let queue = context.queue()?;
    let (mut given, mut missing) = (0, 0);
    for round in 0..40 {
        let timing = if round % 2 == 0 { Timing::Measured } else { Timing::Off };
        let fence = submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, timing)?;
        fence.wait()?;
        let first = fence.timeline().take_duration(fence.point())?;
        ensure!(fence.timeline().take_duration(fence.point())?.is_none(), "a duration is given twice");
        match timing {
            Timing::Off => ensure!(first.is_none(), "an operation that was not measured took {first:?}"),
            Timing::Measured if first.is_some() => given += 1,
            Timing::Measured => missing += 1,
        }
    }
    ensure!(given == 0 || missing == 0, "{given} measured operations have durations, {missing} have none");
    Ok(Verdict::passed_if(given > 0, "the device measures no durations"))
}
