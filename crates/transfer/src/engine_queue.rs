//! Counts the bytes that one manager has queued before each device's copy engines and that are not complete.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{DeviceId, Fence, TimelineId, TransferPath};

/// Smaller copies are not counted: an engine does them as fast as they can be submitted, so they cannot pile up.
const COUNTED_FROM: u64 = 64 << 10;
/// Every so many additions the completed ones are removed, even if nobody reads the count.
const SWEEP_EVERY: u64 = 256;

/// The copies to or from one device that are queued and not complete. A copy engine does them in turn, whatever
/// the priorities of their queues.
#[derive(Debug, Default)]
pub(crate) struct EngineQueue {
    bytes: AtomicU64,
    added: AtomicU64,
    lanes: Mutex<Vec<Lane>>,
}

/// The copies of one timeline, in its order.
#[derive(Debug)]
struct Lane {
    timeline: TimelineId,
    pending: VecDeque<(Fence, u64)>,
}

/// Copies that are complete. Dropped without a lock held.
type Completed = SmallVec<[(Fence, u64); 4]>;

impl EngineQueue {
    /// Counts `bytes` until `fence` is reached.
    pub(crate) fn add(&self, fence: &Fence, bytes: u64) {
        if bytes < COUNTED_FROM {
            return;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let timeline = fence.timeline().id();
        let mut completed = Completed::new();
        {
            let mut lanes = self.lanes.lock();
            let index = lanes.iter().position(|lane| lane.timeline == timeline).unwrap_or_else(|| {
                lanes.push(Lane { timeline, pending: VecDeque::new() });
                lanes.len() - 1
            });
            if let Some(lane) = lanes.get_mut(index) {
                lane.pop_completed(Fence::is_known_done, &mut completed);
                lane.pending.push_back((fence.clone(), bytes));
            }
        }
        self.subtract(&completed);
        if self.added.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1
            && !transload_core::mutant!("transfer/engine-queue-keeps-fences")
        {
            self.sweep();
        }
    }

    /// The bytes whose fences are not reached, after polling at most one fence of each timeline in vain. Returns 0 without a
    /// lock if nothing is queued. A concurrent call may make this one count too much, never too little.
    pub(crate) fn queued(&self) -> u64 {
        if self.bytes.load(Ordering::Relaxed) != 0 {
            self.sweep();
        }
        self.bytes.load(Ordering::Relaxed)
    }

    /// Removes what is complete. The driver is called with no lock held.
    pub(crate) fn sweep(&self) {
        let mut lanes = std::mem::take(&mut *self.lanes.lock());
        let mut completed = Completed::new();
        for lane in &mut lanes {
            lane.pop_completed(Fence::is_over, &mut completed);
        }
        lanes.retain(|lane| !lane.pending.is_empty());
        {
            let mut now = self.lanes.lock();
            for newer in now.drain(..) {
                match lanes.iter_mut().find(|lane| lane.timeline == newer.timeline) {
                    Some(lane) => {
                        lane.pending.extend(newer.pending);
                        // Concurrent sweeps may put their parts back in any order.
                        lane.pending.make_contiguous().sort_by_key(|(fence, _)| fence.point());
                    }
                    None => lanes.push(newer),
                }
            }
            *now = lanes;
        }
        self.subtract(&completed);
    }

    fn subtract(&self, completed: &Completed) {
        let bytes: u64 = completed.iter().map(|(_, bytes)| bytes).sum();
        if bytes > 0 && !transload_core::mutant!("transfer/engine-queue-forgets") {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Lane {
    /// Removes the completed copies up to the first that is not.
    fn pop_completed(&mut self, is_complete: impl Fn(&Fence) -> bool, completed: &mut Completed) {
        while self.pending.front().is_some_and(|(fence, _)| is_complete(fence)) {
            completed.extend(self.pending.pop_front());
        }
    }
}

/// Every engine queue of a manager. Locked only where routes are found and where all are swept.
#[derive(Debug, Default)]
pub(crate) struct EngineQueues {
    queues: Mutex<Vec<(DeviceId, Direction, Arc<EngineQueue>)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToDevice,
    FromDevice,
}

impl EngineQueues {
    /// The queue that copies of `lane` along the path stand in; `None` unless one side is the host.
    pub(crate) fn of(&self, path: TransferPath, lane: DeviceId) -> Option<Arc<EngineQueue>> {
        let direction = match (path.src.device.is_cpu(), path.dst.device.is_cpu()) {
            (true, false) => Direction::ToDevice,
            (false, true) => Direction::FromDevice,
            _ => return None,
        };
        let mut queues = self.queues.lock();
        if let Some((.., queue)) = queues.iter().find(|(of, to, _)| (*of, *to) == (lane, direction)) {
            return Some(Arc::clone(queue));
        }
        let queue = Arc::<EngineQueue>::default();
        queues.push((lane, direction, Arc::clone(&queue)));
        Some(queue)
    }

    /// Removes what is complete from every queue.
    pub(crate) fn sweep(&self) {
        let queues: SmallVec<[_; 8]> =
            self.queues.lock().iter().map(|(.., queue)| Arc::clone(queue)).collect();
        queues.iter().for_each(|queue| queue.sweep());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{any::Any, task::Waker, time::Duration};

    use transload_core::{Result, Timeline, next_timeline_id};

    use super::*;

    /// A timeline that moves when the test says so, and is known to have moved only once it was polled.
    pub(crate) struct Manual {
        id: TimelineId,
        reached: AtomicU64,
        known: AtomicU64,
        polls: AtomicU64,
    }

    impl Manual {
        pub(crate) fn new() -> Arc<Self> {
            let zero = AtomicU64::default;
            Arc::new(Self { id: next_timeline_id(), reached: zero(), known: zero(), polls: zero() })
        }

        pub(crate) fn polls(&self) -> u64 {
            self.polls.load(Ordering::SeqCst)
        }

        pub(crate) fn fence(self: &Arc<Self>, point: u64) -> Fence {
            Fence::new(Arc::clone(self) as _, point)
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
            self.known.load(Ordering::SeqCst)
        }

        fn poll(&self, point: u64) -> Result<bool> {
            self.polls.fetch_add(1, Ordering::SeqCst);
            self.known.fetch_max(self.reached.load(Ordering::SeqCst), Ordering::SeqCst);
            Ok(self.reached() >= point)
        }

        fn wait(&self, _: u64) -> Result<()> {
            Ok(())
        }

        fn wake_at(&self, _: u64, _: &Waker) -> bool {
            false
        }

        fn take_duration(&self, _: u64) -> Result<Option<Duration>> {
            Ok(None)
        }

        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[test]
    fn count_is_exact_after_ends_that_nobody_observed() {
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
    fn reading_the_count_polls_each_timeline_at_most_once_in_vain() {
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
    fn fences_are_let_go_although_nobody_reads_the_count() {
        let queue = EngineQueue::default();
        let timelines: Vec<_> = (0..SWEEP_EVERY).map(|_| Manual::new()).collect();
        for timeline in &timelines {
            timeline.reach(1);
            queue.add(&timeline.fence(1), 1 << 20);
        }
        assert_eq!(queue.bytes.load(Ordering::Relaxed), 0);
        assert!(timelines.iter().all(|timeline| Arc::strong_count(timeline) == 1));
    }

    #[test]
    fn threads_that_add_and_read_at_once_leave_nothing_counted() {
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
}
