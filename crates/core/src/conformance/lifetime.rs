//! Promises about host views, and about memory and leases whose handles go early.

use std::thread;

use super::{
    Failure, Found, Verdict,
    gate::Gate,
    lab::{Lab, refused, same},
    same_ledgers,
};
use crate::{Backend, ErrorKind, Operation, StreamPriority, Timing, WorkloadType, submit};

pub(super) fn views(lab: &Lab<'_>) -> Found {
    let queue = lab.queue()?;
    let mut noise = lab.noise("views");
    let mut any = false;
    for (from, to) in lab.paths() {
        let (old, new) = (noise.bytes(lab.size(2_500_000)), noise.bytes(lab.size(2_500_000)));
        let (src, dst) = (lab.buffer_of(from, &new)?, lab.buffer_of(to, &old)?);
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
        lab.expect(&dst, &old, "bytes after a refused write")?;
        if src.host_address().is_some() {
            let view = src.write()?;
            refused(copy(), ErrorKind::Busy, "a read under an open writable view")?;
            drop(view);
            let view = src.read()?;
            copy()?.wait()?;
            drop(view);
            lab.expect(&dst, &new, "bytes that were read under a view")?;
        }
    }
    Ok(Verdict::passed_if(any, "the host sees no memory that is copied to"))
}

pub(super) fn dropped(lab: &Lab<'_>) -> Found {
    let mut noise = lab.noise("dropped");
    for (from, to) in lab.paths() {
        let queues = lab.queues()?;
        let before = lab.subject.ledgers()?;
        let content = noise.bytes(lab.size(2_500_000));
        for (round, queue) in queues.iter().cycle().take(12).enumerate() {
            let (src, dst) = (lab.buffer_of(from, &content)?, lab.allocate(to, content.len())?);
            let kept = lab.allocate(from, content.len())?;
            submit(&**queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?;
            let next = &queues[(round + 1) % queues.len()];
            let back = Operation::Copy { src: &dst, dst: &kept };
            let comes_back = next.can_copy(to.place, from.place);
            if comes_back {
                submit(&**next, &back, Timing::Off)?;
            }
            // The last handles go here or on a thread that never saw the device, the work being in flight.
            if round % 2 == 0 {
                drop((src, dst));
            } else {
                thread::scope(|scope| scope.spawn(move || drop((src, dst))).join())
                    .map_err(|panic| Failure::panicked(panic))?;
            }
            // Fresh memory must not be what is still in use.
            let fresh = lab.allocate(to, content.len())?;
            lab.put(&fresh, &vec![0xA5; content.len()])?;
            if comes_back {
                lab.expect(&kept, &content, &format!("bytes that came by dropped memory of {}", to.place))?;
            }
            lab.expect(&fresh, &vec![0xA5; content.len()], "memory beside dropped memory")?;
        }
        same_ledgers(&before, &lab.subject.ledgers()?)?;
    }
    parked(lab)?;
    Ok(Verdict::Passed)
}

/// What a stranger's work uses stays when it is dropped, and is counted.
fn parked(lab: &Lab<'_>) -> Result<(), Failure> {
    for spot in lab.spots.iter().copied() {
        let before = lab.subject.ledgers()?;
        let gate = Gate::closed(lab.subject.patience);
        gate.hold(&lab.allocate(spot, 4096)?)?;
        let count = |backend: &dyn Backend| backend.ledger().allocations;
        let now = count(lab.backend()).max(count(&*lab.subject.host));
        ensure!(now >= 1, "memory of {} was freed while it was used", spot.place);
        let parked = lab.backend().ledger().parked + lab.subject.host.ledger().parked;
        ensure!(parked > before[0].parked + before[1].parked, "memory in use is dropped and not parked");
        gate.open();
        ensure!(!gate.was_forced(), "somebody waited where nobody may");
        same_ledgers(&before, &lab.subject.ledgers()?)?;
    }
    Ok(())
}

pub(super) fn leases(lab: &Lab<'_>) -> Found {
    let before = lab.subject.ledgers()?[0].leases;
    let mut held = Vec::new();
    for priority in [StreamPriority::High, StreamPriority::Normal, StreamPriority::Low] {
        for workload in
            [WorkloadType::Compute, WorkloadType::Memory, WorkloadType::Mixed, WorkloadType::Coordination]
        {
            for _ in 0..3 {
                let queue = lab.backend().lease_queue(lab.subject.device, priority, workload)?;
                ensure_eq!(queue.device(), lab.subject.device, "a queue's device");
                ensure_eq!(queue.priority(), priority, "a queue's priority");
                held.push(queue);
                ensure_eq!(
                    lab.backend().ledger().leases,
                    before + held.len() as u64,
                    "the ledger's count of leases"
                );
            }
        }
    }
    drop(held);
    ensure_eq!(lab.backend().ledger().leases, before, "the ledger's count of leases, all dropped,");
    for (from, to) in lab.paths() {
        let content = lab.noise("leases").bytes(lab.size(2_500_000));
        let (src, dst) = (lab.buffer_of(from, &content)?, lab.allocate(to, content.len())?);
        let fence = {
            let queue = lab.queue()?;
            submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?
        };
        fence.wait()?;
        lab.expect(&dst, &content, "what a queue did after its lease")?;
    }
    Ok(Verdict::Passed)
}
