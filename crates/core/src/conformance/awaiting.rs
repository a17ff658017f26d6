//! Promises about wakers, with hand-written wakers: no executor is needed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
};

use parking_lot::{Condvar, Mutex};

use super::{
    CheckResult, Failure, Verdict,
    context::{self, TestContext},
    gate::Gate,
};
use crate::{Fence, Operation, Pattern, Queue, Timing, submit};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Registers with a fence; returns the wake count and whether the fence was already complete.
fn register(fence: &Fence) -> (Arc<Count>, bool) {
    let count = Arc::new(Count::default());
    let over = fence.timeline().wake_at(fence.point(), &Waker::from(Arc::clone(&count)));
    (count, over)
}

pub(super) fn wakers(context: &TestContext<'_>) -> CheckResult {
    let queues = context.queues()?;
    let mut rng = context.rng("wakers");
    for (from, to) in context.paths() {
        let bytes = context.size(3_000_000);
        let (src, dst) = (context.buffer_of(from, &rng.bytes(bytes))?, context.allocate(to, bytes)?);
        for queue in &queues {
            let fence = submit(&**queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?;
            let (count, over) = register(&fence);
            if !over {
                ensure!(context.wait_until(|| count.get() > 0), "a waker was not woken");
            }
            ensure!(fence.timeline().poll(fence.point())?, "woken, and the point is not reached");
            fence.wait()?;
            let (late, over) = register(&fence);
            ensure!(over, "a point that is over is not said to be so");
            ensure!(context.wait_until(|| Arc::strong_count(&late) == 1), "a waker is kept for what is over");
            ensure!(
                context.wait_until(|| Arc::strong_count(&count) == 1),
                "a waker is kept after it was woken"
            );
            ensure!(count.get() <= 1 && late.get() == 0, "a waker was woken {} times", count.get());
        }
    }
    held_wakers(context)?;
    Ok(Verdict::Passed)
}

/// If queues wait for a gate, no waker is called before it opens.
fn held_wakers(context: &TestContext<'_>) -> Result<(), Failure> {
    for (host, there) in context.round_trips() {
        let (src, dst) = (context.buffer_of(host, &[1; 100])?, context.buffer_of(there, &[2; 100])?);
        let queue = context.queue()?;
        let gate = Gate::closed(context.subject.wake_timeout);
        let gated = gate.hold(&src)?;
        if !queue.can_wait_for(&gated) {
            return Ok(());
        }
        let fence = submit(&*queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?;
        let (count, over) = register(&fence);
        context::watch_briefly(|| false);
        ensure!(!over && count.get() == 0, "woken before the work could begin");
        gate.open();
        ensure!(!gate.was_forced(), "somebody waited where nobody may");
        ensure!(context.wait_until(|| count.get() == 1), "a waker was woken {} times", count.get());
        ensure!(fence.timeline().poll(fence.point())?, "woken, and the point is not reached");
    }
    Ok(())
}

/// Operations that were woken.
#[derive(Default)]
struct Ready {
    wake_list: Mutex<Vec<usize>>,
    more: Condvar,
}

struct Task {
    index: usize,
    ready: Arc<Ready>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.ready.wake_list.lock().push(self.index);
        self.ready.more.notify_one();
    }
}

pub(super) fn thousand(context: &TestContext<'_>) -> CheckResult {
    const TASKS: usize = 1000;
    const PART: usize = 777;
    let Some((from, to)) = context.round_trips().first().copied() else {
        return Ok(Verdict::NotApplicable("no memory is copied both to and from the host".to_owned()));
    };
    let content = context.rng("thousand").bytes(TASKS * PART);
    let (src, dst) = (context.buffer_of(from, &content)?, context.allocate(to, content.len())?);
    let hold = context.allocate(from, context.size(3_000_000))?;
    let queues = context.queues()?;
    // Earlier work, so that there is something to wait for: a gate, or large copies.
    let gate = Gate::closed(context.subject.wake_timeout);
    if !queues.iter().all(|queue| queue.can_wait_for(&Fence::new(gate.timeline().clone(), 1))) {
        gate.open();
    }
    gate.hold(&hold)?;
    for queue in &queues {
        let large = context.allocate(to, hold.len())?;
        submit(&**queue, &Operation::Copy { src: &hold, dst: &large }, Timing::Off)?;
        let fill = submit(&**queue, &Operation::Fill { dst: &large, pattern: Pattern::U8(1) }, Timing::Off);
        drop(fill);
    }
    let mut fences = Vec::with_capacity(TASKS);
    for index in 0..TASKS {
        let range = index * PART..(index + 1) * PART;
        let (src, dst) = (src.slice(range.clone())?, dst.slice(range)?);
        let queue = &queues[index % queues.len()];
        fences.push(submit(&**queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?);
    }
    let ready = Arc::new(Ready::default());
    let mut open = 0;
    for (index, fence) in fences.iter().enumerate() {
        let waker = Waker::from(Arc::new(Task { index, ready: Arc::clone(&ready) }));
        if !fence.timeline().poll(fence.point())? && !fence.timeline().wake_at(fence.point(), &waker) {
            open += 1;
        }
    }
    gate.open();
    while open > 0 {
        let mut wake_list = ready.wake_list.lock();
        if wake_list.is_empty()
            && ready.more.wait_for(&mut wake_list, context.subject.wake_timeout).timed_out()
        {
            fail!("{open} of {TASKS} awaited operations were never woken");
        }
        for index in std::mem::take(&mut *wake_list) {
            let fence = &fences[index];
            ensure!(
                fence.is_known_complete() || fence.timeline().poll(fence.point())?,
                "{fence:?} woken early"
            );
            open -= 1;
        }
    }
    ensure!(fences.iter().all(Fence::is_complete), "all were awaited, not all are over");
    context.expect(&dst, &content, "the bytes of a thousand operations")?;
    Ok(Verdict::Passed)
}
