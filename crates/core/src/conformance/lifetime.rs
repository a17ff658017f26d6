//! Promises about host views, and about memory and leases dropped early.

use std::thread;

use super::{
    CheckResult, Failure, Verdict, check_counts,
    context::{TestContext, refused, same},
    gate::Gate,
};
use crate::{Backend, ErrorKind, Operation, StreamPriority, Timing, WorkloadType, submit};

pub(super) fn views(context: &TestContext<'_>) -> CheckResult {
    let queue = context.queue()?;
    let mut rng = context.rng("views");
    let mut any = false;
    for (from, to) in context.paths() {
        let (old, new) = (rng.bytes(context.size(2_500_000)), rng.bytes(context.size(2_500_000)));
        let (src, dst) = (context.buffer_of(from, &new)?, context.buffer_of(to, &old)?);
        if dst.host_address().is_none() {
            refused(dst.read(), ErrorKind::Unsupported, &format!("a host view of {}", to.place))?;
            refused(dst.try_write(), ErrorKind::Unsupported, &format!("a host view of {}", to.place))?;
            continue;
        }
        any = true;
        let copy = || submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off);
        copy()?;
        match dst.try_read() {
            Ok(view) => same(&view, &new, "a view that did not wait")?,
            Err(error) => ensure!(error.kind() == ErrorKind::Busy, "a view that does not wait: {error:?}"),
        }
        same(&dst.read()?, &new, "a view that waits")?;
        dst.write()?.copy_from_slice(&old);
        {
            let view = dst.read()?;
            refused(copy(), ErrorKind::Busy, "a write under an open view")?;
            refused(dst.write(), ErrorKind::Busy, "a writable view beside an open one")?;
            same(&dst.read()?, &view, "a second view")?;
        }
        context.expect(&dst, &old, "bytes after a refused write")?;
        if src.host_address().is_some() {
            let view = src.write()?;
            refused(copy(), ErrorKind::Busy, "a read under an open writable view")?;
            drop(view);
            let view = src.read()?;
            copy()?.wait()?;
            drop(view);
            context.expect(&dst, &new, "bytes that were read under a view")?;
        }
    }
    Ok(Verdict::passed_if(any, "the host sees no memory that is copied to"))
}

pub(super) fn dropped(context: &TestContext<'_>) -> CheckResult {
    let mut rng = context.rng("dropped");
    for (from, to) in context.paths() {
        let queues = context.queues()?;
        let before = context.subject.resource_counts()?;
        let content = rng.bytes(context.size(2_500_000));
        for (round, queue) in queues.iter().cycle().take(12).enumerate() {
            let (src, dst) = (context.buffer_of(from, &content)?, context.allocate(to, content.len())?);
            let kept = context.allocate(from, content.len())?;
            submit(&**queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?;
            let next = &queues[(round + 1) % queues.len()];
            let back = Operation::Copy { src: &dst, dst: &kept };
            let comes_back = next.can_copy(to.place, from.place);
            if comes_back {
                submit(&**next, &back, Timing::Off)?;
            }
            // The last handles are dropped here, or on a thread that never used the device, while the work is
            // in flight.
            if round % 2 == 0 {
                drop((src, dst));
            } else {
                thread::scope(|scope| scope.spawn(move || drop((src, dst))).join())
                    .map_err(|panic| Failure::panicked(panic))?;
            }
            // New memory must not overlap memory still in use.
            let fresh = context.allocate(to, content.len())?;
            context.put(&fresh, &vec![0xA5; content.len()])?;
            if comes_back {
                context.expect(
                    &kept,
                    &content,
                    &format!("bytes that came by dropped memory of {}", to.place),
                )?;
            }
            context.expect(&fresh, &vec![0xA5; content.len()], "memory beside dropped memory")?;
        }
        check_counts(&before, &context.subject.resource_counts()?)?;
    }
    pending_free(context)?;
    Ok(Verdict::Passed)
}

/// Memory used by another backend's work stays alive when it is dropped, and is counted.
fn pending_free(context: &TestContext<'_>) -> Result<(), Failure> {
    for memory in context.memories.iter().copied() {
        let before = context.subject.resource_counts()?;
        let gate = Gate::closed(context.subject.wake_timeout);
        gate.hold(&context.allocate(memory, 4096)?)?;
        let count = |backend: &dyn Backend| backend.resource_counts().allocations;
        let now = count(context.backend()).max(count(&*context.subject.host));
        ensure!(now >= 1, "memory of {} was freed while it was used", memory.place);
        let pending = context.backend().resource_counts().pending_free
            + context.subject.host.resource_counts().pending_free;
        ensure!(
            pending > before[0].pending_free + before[1].pending_free,
            "memory in use is dropped and not pending free"
        );
        gate.open();
        ensure!(!gate.was_forced(), "somebody waited where nobody may");
        check_counts(&before, &context.subject.resource_counts()?)?;
    }
    Ok(())
}

pub(super) fn leases(context: &TestContext<'_>) -> CheckResult {
    let before = context.subject.resource_counts()?[0].leases;
    let mut held = Vec::new();
    for priority in [StreamPriority::High, StreamPriority::Normal, StreamPriority::Low] {
        for workload in
            [WorkloadType::Compute, WorkloadType::Memory, WorkloadType::Mixed, WorkloadType::Coordination]
        {
            for _ in 0..3 {
                let queue = context.backend().lease_queue(context.subject.device, priority, workload)?;
                ensure_eq!(queue.device(), context.subject.device, "a queue's device");
                ensure_eq!(queue.priority(), priority, "a queue's priority");
                held.push(queue);
                ensure_eq!(
                    context.backend().resource_counts().leases,
                    before + held.len() as u64,
                    "the ledger's count of leases"
                );
            }
        }
    }
    drop(held);
    ensure_eq!(
        context.backend().resource_counts().leases,
        before,
        "the ledger's count of leases, all dropped,"
    );
    for (from, to) in context.paths() {
        let content = context.rng("leases").bytes(context.size(2_500_000));
        let (src, dst) = (context.buffer_of(from, &content)?, context.allocate(to, content.len())?);
        let fence = {
            let queue = context.queue()?;
            submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?
        };
        fence.wait()?;
        context.expect(&dst, &content, "what a queue did after its lease")?;
    }
    Ok(Verdict::Passed)
}
