//! Ends of transfers that ended early: found by polls and waits, however many come after each other.

use std::{
    sync::{Arc, atomic::AtomicU64},
    task::Wake,
};

use transload_core::ErrorKind;

use super::*;
use crate::planning::engine_queue::tests::Manual;

fn early(remaining: Fence) -> Arc<StagedTimeline> {
    let end = Arc::new(StagedTimeline::new(DeviceId::Cpu, Timing::Off));
    end.fail(Error::new(ErrorKind::Interrupted, "ended early"));
    end.complete_after(SmallVec::from_iter([remaining]));
    end
}

/// So many, each behind the one before, of which the first is behind `first`.
fn chain(first: Fence, ends: usize) -> Arc<StagedTimeline> {
    let next = |end: Arc<StagedTimeline>, _| early(Fence::new(end, 1));
    (1..ends).fold(early(first), next)
}

#[derive(Default)]
struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn long_chain_of_interrupted_transfers_needs_no_deep_stack() {
    const MANY: usize = 50_000;
    let work = Manual::new();
    drop(chain(work.fence(1), MANY));
    assert_eq!(Arc::strong_count(&work), 1);
    let (polled, waited, woken) =
        (chain(work.fence(1), MANY), chain(work.fence(1), MANY), chain(work.fence(1), MANY));
    assert!(!polled.poll(1).unwrap());
    assert!(!woken.wake_at(1, Waker::noop()));
    work.reach(1);
    assert_eq!(polled.poll(1).unwrap_err().kind(), ErrorKind::Interrupted);
    assert!(woken.wake_at(1, Waker::noop()));
    assert_eq!(waited.wait(1).unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(Arc::strong_count(&work), 1, "an end keeps what it came after");
}

#[test]
fn panic_of_remaining_work_does_not_complete_transfer() {
    let (work, count) = (Manual::new(), Arc::new(Count::default()));
    work.panic_at_questions(1);
    let end = early(work.fence(1));
    work.panic_at_questions(1);
    assert!(!end.poll(1).unwrap());
    work.panic_at_questions(1);
    assert!(!end.wake_at(1, &Waker::from(Arc::clone(&count))));
    assert_eq!(count.0.load(Ordering::SeqCst), 1, "nobody else would wake who asked");
    work.panic_at_questions(1);
    assert_eq!(end.wait(1).unwrap_err().kind(), ErrorKind::Interrupted);
    assert!(end.is_complete());
}
