//! Fences that tasks wait for. Workers poll the earliest point of each timeline, one worker a timeline, so that a driver
//! that does not return stops one worker and one timeline; before they sleep, the timeline gets a waker.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
};

use concurrent_queue::ConcurrentQueue;
use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{Fence, Result, Timeline, TimelineId, catch_panic};

use crate::{
    guarded::{discard, wake},
    workers::Workers,
};

/// Up to so many timelines are all polled by an idle worker, which sees an end earlier than a waker tells it. Of more, each
/// gets a waker at once and is asked again when that is called: what n fences cost in all is proportional to n.
const POLLED: usize = 16;

/// Fences that are awaited.
pub(crate) struct Fences {
    /// In the order of their timelines.
    lanes: Mutex<Vec<Lane>>,
    /// How many timelines there are in `lanes`.
    awaited: AtomicUsize,
    /// How many of them nobody calls and have not the waker for their earliest point. Changed under the lock.
    unregistered: AtomicUsize,
    /// Timelines that called their waker, since the last poll.
    due: ConcurrentQueue<TimelineId>,
}

impl Default for Fences {
    fn default() -> Self {
        Self {
            lanes: Mutex::default(),
            awaited: AtomicUsize::new(0),
            unregistered: AtomicUsize::new(0),
            due: ConcurrentQueue::unbounded(),
        }
    }
}

/// Waits for one timeline.
struct Lane {
    id: TimelineId,
    timeline: Arc<dyn Timeline>,
    /// In the order of their points.
    waits: SmallVec<[(u64, Waker); 4]>,
    /// Whether a worker is calling the timeline.
    called: bool,
    /// Whether the timeline called a waker during that call, which may have been too early to see it.
    recall: bool,
    /// The point for which the timeline has a waker.
    registered: Option<u64>,
}

impl Lane {
    fn earliest(&self) -> Option<u64> {
        self.waits.first().map(|(point, _)| *point)
    }

    fn is_unregistered(&self) -> bool {
        !self.called && (self.registered.is_none() || self.registered != self.earliest())
    }
}

/// A worker's call of a timeline. Dropped, also by a panic of the timeline's, the lane may be called again.
struct Call<'a> {
    fences: &'a Fences,
    fence: Fence,
    over: bool,
    /// The last point that is known to be over, if this one is.
    reached: u64,
    registered: bool,
}

impl Fences {
    /// Returns whether any fence is awaited.
    pub(crate) fn are_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) > 0
    }

    /// Returns whether no worker may sleep before it polled, or registered its waker.
    pub(crate) fn need_a_poll(&self) -> bool {
        self.unregistered.load(Ordering::Relaxed) > 0 || !self.due.is_empty()
    }

    /// A timeline says that a point is complete; a worker must be told as well.
    pub(crate) fn set_due(&self, timeline: TimelineId) {
        // It is neither bounded nor ever closed.
        let _always = self.due.push(timeline);
    }

    /// Polls timelines that no other worker is calling: all if they are few, else those that called their waker or never had
    /// one. Returns whether any wait ended.
    ///
    /// `around` runs each call of a timeline, which may take long. It is told whether another timeline has no one to poll it
    /// meanwhile. `waker` makes the waker of a timeline.
    pub(crate) fn poll(
        &self,
        waker: impl Fn(TimelineId) -> Waker,
        around: impl FnMut(bool, &mut dyn FnMut()),
    ) -> bool {
        while let Ok(id) = self.due.pop() {
            let mut lanes = self.lanes.lock();
            if let Ok(at) = find(&lanes, id) {
                self.change(&mut lanes, at, |lane| {
                    if !transload_core::mutant!("executor/recall") {
                        lane.registered = None;
                    }
                    // Another worker may be registering, and must not take what is spent for the lane's waker.
                    lane.recall = lane.called;
                });
            }
        }
        match self.awaited.load(Ordering::Relaxed) {
            0 => false,
            1..=POLLED => self.each(|_| true, around, |call| call.over = call.fence.is_complete()),
            _ => self.register(waker, around),
        }
    }

    /// Gives a waker to each timeline that has none. Returns whether any wait ended. The arguments are as for
    /// [`poll`](Self::poll).
    pub(crate) fn register(
        &self,
        waker: impl Fn(TimelineId) -> Waker,
        around: impl FnMut(bool, &mut dyn FnMut()),
    ) -> bool {
        if self.unregistered.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.each(Lane::is_unregistered, around, |call| {
            let timeline = call.fence.timeline();
            call.over = !transload_core::mutant!("executor/register")
                && timeline.wake_at(call.fence.point(), &waker(timeline.id()));
            call.registered = !call.over;
        })
    }

    fn each(
        &self,
        is_meant: impl Fn(&Lane) -> bool,
        mut around: impl FnMut(bool, &mut dyn FnMut()),
        ask: impl Fn(&mut Call<'_>),
    ) -> bool {
        let (mut last, mut ended) = (None, false);
        loop {
            let mut lanes = self.lanes.lock();
            let from = last.map_or(0, |last| lanes.partition_point(|lane| lane.id <= last));
            let free = |lane: &Lane| !lane.called && is_meant(lane);
            let Some(at) = lanes.iter().skip(from).position(free) else { return ended };
            let called = |lane: &mut Lane| {
                lane.called = !transload_core::mutant!("executor/one-caller");
                lane.earliest().map(|point| Fence::new(Arc::clone(&lane.timeline), point))
            };
            let Some(fence) = self.change(&mut lanes, from + at, called).flatten() else { return ended };
            drop(lanes);
            last = Some(fence.timeline().id());
            let others = self.unregistered.load(Ordering::Relaxed) > 0;
            let mut call = Call { fences: self, fence, over: false, reached: 0, registered: false };
            // A timeline that panics breaks its promise, but ends no thread.
            let ask = |call: &mut Call<'_>| {
                ask(call);
                if call.over {
                    call.reached = call.fence.timeline().reached().max(call.fence.point());
                }
            };
            around(others, &mut || drop(catch_panic(|| ask(&mut call))));
            ended |= call.over;
            // With it the timeline may go.
            discard(call);
        }
    }

    /// Adds a wait. Returns whether it is new, so that a worker must be told.
    fn add(&self, fence: &Fence, waker: Waker) -> bool {
        let (id, point) = (fence.timeline().id(), fence.point());
        let mut lanes = self.lanes.lock();
        let at = find(&lanes, id).unwrap_or_else(|at| {
            let (timeline, waits) = (Arc::clone(fence.timeline()), SmallVec::new());
            lanes.insert(at, Lane { id, timeline, waits, called: false, recall: false, registered: None });
            self.unregistered.fetch_add(1, Ordering::Relaxed);
            self.awaited.store(lanes.len(), Ordering::Relaxed);
            at
        });
        let known = self.change(&mut lanes, at, |lane| {
            let from = lane.waits.partition_point(|(known, _)| *known < point);
            let mut same = lane.waits.iter().skip(from).take_while(|(known, _)| *known == point);
            let is_new = !same.any(|(_, known)| known.will_wake(&waker));
            if is_new {
                lane.waits.insert(from, (point, waker));
                None
            } else {
                Some(waker)
            }
        });
        // A waker that is known already is dropped behind the lock, since its drop may call anything.
        drop(lanes);
        matches!(known, Some(None))
    }

    /// Changes a lane, and counts it again.
    fn change<T>(&self, lanes: &mut [Lane], at: usize, change: impl FnOnce(&mut Lane) -> T) -> Option<T> {
        let lane = lanes.get_mut(at)?;
        let before = usize::from(lane.is_unregistered());
        let changed = change(lane);
        let after = usize::from(lane.is_unregistered());
        let count = self.unregistered.load(Ordering::Relaxed);
        self.unregistered.store(count + after - before, Ordering::Relaxed);
        Some(changed)
    }
}

/// Where a timeline's lane is, or would be.
fn find(lanes: &[Lane], id: TimelineId) -> std::result::Result<usize, usize> {
    lanes.binary_search_by_key(&id, |lane| lane.id)
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let (id, point) = (self.fence.timeline().id(), self.fence.point());
        let mut lanes = self.fences.lanes.lock();
        let Ok(at) = find(&lanes, id) else { return };
        let ended = |lane: &mut Lane| {
            lane.called = false;
            let recalled = std::mem::take(&mut lane.recall);
            if self.registered && !recalled {
                lane.registered = Some(point);
            }
            let due = lane.waits.partition_point(|(point, _)| *point <= self.reached);
            let due: SmallVec<[(u64, Waker); 4]> = lane.waits.drain(..due).collect();
            (due, lane.waits.is_empty())
        };
        let Some((due, is_empty)) = self.fences.change(&mut lanes, at, ended) else { return };
        let empty = is_empty.then(|| {
            // Without a wait it has no earliest point, so it counts among the unregistered.
            self.fences.unregistered.fetch_sub(1, Ordering::Relaxed);
            lanes.remove(at)
        });
        self.fences.awaited.store(lanes.len(), Ordering::Relaxed);
        drop(lanes);
        // Outside the lock, although the fence of this call has the timeline as well.
        drop(empty);
        due.into_iter().for_each(|(_, waker)| wake(waker));
    }
}

/// Completes when the fence does; see [`Executor::fence`](crate::Executor::fence).
pub(crate) fn complete(
    workers: Arc<Workers>,
    fence: Fence,
) -> impl Future<Output = Result<()>> + Send + Unpin {
    poll_fn(move |context| {
        let timeline = fence.timeline();
        if !fence.is_known_complete() {
            // The host's own timelines wake at once; there is nothing to ask a driver.
            let is_hosts = timeline.device().is_cpu();
            if is_hosts && !timeline.wake_at(fence.point(), context.waker()) {
                return Poll::Pending;
            }
            if !is_hosts {
                // A point that is reached from here on is found by the worker that is told now.
                if workers.fences.add(&fence, context.waker().clone()) {
                    workers.announce();
                }
                return Poll::Pending;
            }
        }
        // The point is reached: this returns the outcome and does not block.
        Poll::Ready(fence.wait())
    })
}
