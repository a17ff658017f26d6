//! How much is queued before a copy engine.

use std::{any::Any, task::Waker};

use transload_core::{Result, Timeline, next_timeline_id};

use super::*;

/// A timeline that moves when the test says so, and is known to have moved only once it was polled.
pub(crate) struct Manual {
    id: TimelineId,
    reached: AtomicU64,
    known: AtomicU64,
    polls: AtomicU64,
    /// Looks and polls that are to panic.
    panics: AtomicU64,
}

impl Manual {
    pub(crate) fn new() -> Arc<Self> {
        let zero = AtomicU64::default;
        Arc::new(Self {
            id: next_timeline_id(),
            reached: zero(),
            known: zero(),
            polls: zero(),
            panics: zero(),
        })
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::SeqCst)
    }

    pub(crate) fn fence(self: &Arc<Self>, point: u64) -> Fence {
        Fence::new(Arc::clone(self) as _, point)
    }

    pub(crate) fn panic_at_questions(&self, next: u64) {
        self.panics.store(next, Ordering::SeqCst);
    }

    fn may_panic(&self) {
        let one_less = |left: u64| left.checked_sub(1);
        let left = self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        assert!(left.is_err(), "planted panic of a timeline");
    }

    pub(crate) fn reach(&self, point: u64) {
        self.reached.fetch_max(point, Ordering::SeqCst);
    }
}

// SAFETY: no memory depends on it.
unsafe impl Timeline for Manual {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Other("manual", 0)
    }

    fn reached(&self) -> u64 {
        self.may_panic();
        self.known.load(Ordering::SeqCst)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        self.polls.fetch_add(1, Ordering::SeqCst);
        self.known.fetch_max(self.reached.load(Ordering::SeqCst), Ordering::SeqCst);
        Ok(self.reached() >= point)
    }

    fn wait(&self, _: u64) -> Result<()> {
        self.may_panic();
        Ok(())
    }

    fn wake_at(&self, _: u64, _: &Waker) -> bool {
        self.may_panic();
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn count_is_exact_after_unobserved_ends() {
    let queue = EngineQueue::default();
    let (one, two) = (Manual::new(), Manual::new());
    queue.add(&one.fence(1), COUNTED_FROM - 1);
    assert_eq!(queue.queued(), 0, "small copies do not pile up");
    for point in 1..=10 {
        queue.add(&one.fence(point), 1 << 20);
        queue.add(&two.fence(point), 1 << 21);
    }
    assert_eq!(queue.queued(), 10 * (3 << 20));
    one.reach(4);
    assert_eq!(queue.queued(), (6 << 20) + (20 << 20));
    two.reach(10);
    assert_eq!(queue.queued(), 6 << 20);
    one.reach(10);
    assert_eq!(queue.queued(), 0);
    let polls = one.polls.load(Ordering::SeqCst);
    assert_eq!((queue.queued(), one.polls.load(Ordering::SeqCst)), (0, polls), "nothing left to poll");
}

#[test]
fn count_polls_one_incomplete_fence_per_timeline() {
    let queue = EngineQueue::default();
    let timeline = Manual::new();
    (1..=1000).for_each(|point| queue.add(&timeline.fence(point), 1 << 20));
    let before = timeline.polls.load(Ordering::SeqCst);
    assert!(before <= 1000 / SWEEP_EVERY, "{before} polls by additions alone");
    assert_eq!(queue.queued(), 1000 << 20);
    assert_eq!(timeline.polls.load(Ordering::SeqCst) - before, 1);
    timeline.reach(999);
    assert_eq!(queue.queued(), 1 << 20);
    assert_eq!(timeline.polls.load(Ordering::SeqCst) - before, 3);
}

#[test]
fn fences_are_released_without_reading_count() {
    let queue = EngineQueue::default();
    let timelines: Vec<_> = (0..SWEEP_EVERY).map(|_| Manual::new()).collect();
    for timeline in &timelines {
        timeline.reach(1);
        queue.add(&timeline.fence(1), 1 << 20);
    }
    assert_eq!(queue.by_engine.bytes.load(Ordering::Relaxed), 0);
    assert!(timelines.iter().all(|timeline| Arc::strong_count(timeline) == 1));
}

#[test]
fn concurrent_adds_and_reads_leave_zero() {
    let queue = EngineQueue::default();
    let timelines: [_; 4] = std::array::from_fn(|_| Manual::new());
    std::thread::scope(|scope| {
        for timeline in &timelines {
            scope.spawn(|| {
                for point in 1..=2000 {
                    queue.add(&timeline.fence(point), 1 << 20);
                    if point % 3 == 0 {
                        timeline.reach(point - 1);
                        assert!(queue.queued() >= 1 << 20, "its own last copy is not complete");
                    }
                }
            });
        }
    });
    timelines.iter().for_each(|timeline| timeline.reach(2000));
    assert_eq!(queue.queued(), 0);
}

#[test]
fn copies_of_panicking_timeline_stay_counted() {
    let (queue, timeline) = (EngineQueue::default(), Manual::new());
    queue.add(&timeline.fence(1), COUNTED_FROM);
    timeline.panic_at_questions(1);
    queue.add(&timeline.fence(2), COUNTED_FROM);
    timeline.panic_at_questions(1);
    assert_eq!(queue.queued(), 2 * COUNTED_FROM);
    timeline.reach(2);
    assert_eq!(queue.queued(), 0);
}

#[test]
fn kernels_are_company_but_hold_up_no_engine() {
    let (queue, timeline) = (EngineQueue::default(), Manual::new());
    queue.add_kernel(&timeline.fence(1), 1 << 20);
    queue.add(&timeline.fence(2), 1 << 21);
    assert_eq!((queue.queued(), queue.in_flight(), queue.added()), (1 << 21, 3 << 20, 2));
    timeline.reach(1);
    assert_eq!((queue.queued(), queue.in_flight()), (1 << 21, 1 << 21));
    timeline.reach(2);
    queue.sweep();
    assert_eq!((queue.in_flight(), Arc::strong_count(&timeline)), (0, 1));
}
