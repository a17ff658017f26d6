//! Fences that tasks wait for. Workers poll the earliest point of each timeline, one worker a timeline, so that a driver
//! that does not return stops one worker and one timeline; before they sleep, the timeline gets a waker.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{Fence, Result, Timeline};

use crate::{
    guarded::{catch_panic, wake},
    workers::Workers,
};

/// Fences that are awaited.
#[derive(Default)]
pub(crate) struct Fences {
    lanes: Mutex<Vec<Lane>>,
    /// How many timelines there are in `lanes`.
    awaited: AtomicUsize,
    /// Whether a poll must come before the last worker sleeps: a timeline has not the waker for its earliest point.
    unregistered: AtomicBool,
    /// Whether a timeline woke a worker since the last poll.
    due: AtomicBool,
}

/// Waits for one timeline.
struct Lane {
    timeline: Arc<dyn Timeline>,
    waits: SmallVec<[(u64, Waker); 4]>,
    /// Whether a worker is calling the timeline.
    called: bool,
    /// Whether a timeline woke the workers during that call, which may have been too early to see it.
    recall: bool,
    /// The point for which the timeline has the workers' waker.
    registered: Option<u64>,
}

impl Lane {
    fn earliest(&self) -> Option<u64> {
        self.waits.iter().map(|(point, _)| *point).min()
    }

    fn is_registered(&self) -> bool {
        self.registered.is_some() && self.registered == self.earliest()
    }
}

/// A worker's call of a timeline. Dropped, also by a panic of the timeline's, the lane may be called again.
struct Call<'a> {
    fences: &'a Fences,
    fence: Fence,
    over: bool,
    registered: bool,
}

impl Fences {
    /// Returns whether any fence is awaited.
    pub(crate) fn are_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) > 0
    }

    /// Returns whether no worker may sleep before it polled, or registered its waker.
    pub(crate) fn need_a_poll(&self) -> bool {
        self.unregistered.load(Ordering::Relaxed) || self.due.load(Ordering::Relaxed)
    }

    /// A timeline says that a point is complete; a worker must be told as well.
    pub(crate) fn set_due(&self) {
        self.due.store(true, Ordering::Relaxed);
    }

    /// Polls each timeline that no other worker is calling. Returns whether any wait ended.
    ///
    /// `around` runs each call of a timeline, which may take long. It is told whether another timeline has no one to poll it
    /// meanwhile.
    pub(crate) fn poll(&self, around: impl FnMut(bool, &mut dyn FnMut())) -> bool {
        if !self.are_awaited() {
            return false;
        }
        if self.due.swap(false, Ordering::Relaxed) {
            // The wake may be for a timeline that another worker asked too early, and is still calling.
            self.lanes.lock().iter_mut().filter(|lane| lane.called).for_each(|lane| lane.recall = true);
        }
        self.each(|_| true, around, |call| call.over = call.fence.is_over())
    }

    /// Gives the waker to each timeline that has it not. Returns whether any wait ended. `around` is as for
    /// [`poll`](Self::poll).
    pub(crate) fn register(&self, waker: &Waker, around: impl FnMut(bool, &mut dyn FnMut())) -> bool {
        if !self.unregistered.load(Ordering::Relaxed) {
            return false;
        }
        self.each(
            |lane| !lane.is_registered(),
            around,
            |call| {
                call.over = !transload_core::mutant!("executor/register")
                    && call.fence.timeline().wake_at(call.fence.point(), waker);
                call.registered = !call.over;
            },
        )
    }

    fn each(
        &self,
        is_meant: impl Fn(&Lane) -> bool,
        mut around: impl FnMut(bool, &mut dyn FnMut()),
        ask: impl Fn(&mut Call<'_>),
    ) -> bool {
        let (mut index, mut ended) = (0, false);
        loop {
            let mut lanes = self.lanes.lock();
            let free = |(_, lane): &(usize, &mut Lane)| !lane.called && is_meant(lane);
            let Some((at, lane)) = lanes.iter_mut().enumerate().skip(index).find(free) else { return ended };
            let Some(point) = lane.earliest() else { return ended };
            lane.called = !transload_core::mutant!("executor/one-caller");
            let fence = Fence::new(Arc::clone(&lane.timeline), point);
            let others = lanes.iter().any(|lane| !lane.called && !lane.is_registered());
            drop(lanes);
            index = at + 1;
            let mut call = Call { fences: self, fence, over: false, registered: false };
            // A timeline that panics breaks its promise, but ends no thread.
            around(others, &mut || drop(catch_panic(|| ask(&mut call))));
            ended |= call.over;
        }
    }

    /// Adds a wait. Returns whether it is new, so that a worker must be told.
    fn add(&self, fence: &Fence, waker: Waker) -> bool {
        let mut lanes = self.lanes.lock();
        let id = fence.timeline().id();
        let lane = match lanes.iter().position(|lane| lane.timeline.id() == id) {
            Some(index) => lanes.get_mut(index),
            None => {
                let timeline = Arc::clone(fence.timeline());
                lanes.push(Lane {
                    timeline,
                    waits: SmallVec::new(),
                    called: false,
                    recall: false,
                    registered: None,
                });
                lanes.last_mut()
            }
        };
        let Some(lane) = lane else { return false };
        let is_known =
            lane.waits.iter().any(|(point, known)| *point == fence.point() && known.will_wake(&waker));
        if !is_known {
            lane.waits.push((fence.point(), waker));
        }
        self.recount(&lanes);
        !is_known
    }

    fn recount(&self, lanes: &[Lane]) {
        self.awaited.store(lanes.len(), Ordering::Relaxed);
        let unregistered = lanes.iter().any(|lane| !lane.called && !lane.is_registered());
        self.unregistered.store(unregistered, Ordering::Relaxed);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut due = SmallVec::<[Waker; 4]>::new();
        let mut lanes = self.fences.lanes.lock();
        let id = self.fence.timeline().id();
        let Some(index) = lanes.iter().position(|lane| lane.timeline.id() == id) else { return };
        let mut empty = None;
        if let Some(lane) = lanes.get_mut(index) {
            lane.called = false;
            if std::mem::take(&mut lane.recall) && !self.over && !transload_core::mutant!("executor/recall") {
                self.fences.set_due();
            }
            if self.registered {
                lane.registered = Some(self.fence.point());
            }
            if self.over {
                let reached = self.fence.timeline().reached().max(self.fence.point());
                while let Some(index) = lane.waits.iter().position(|(point, _)| *point <= reached) {
                    due.push(lane.waits.swap_remove(index).1);
                }
                if lane.waits.is_empty() {
                    empty = Some(lanes.swap_remove(index));
                }
            }
        }
        self.fences.recount(&lanes);
        drop(lanes);
        // The timeline may be the last of its stream: it goes outside the lock.
        drop(empty);
        due.into_iter().for_each(wake);
    }
}

/// A fence's completion as a future; see [`Executor::fence`](crate::Executor::fence).
#[must_use = "a future does nothing unless it is awaited"]
pub struct FenceWait {
    workers: Arc<Workers>,
    fence: Fence,
}

impl FenceWait {
    pub(crate) fn new(workers: Arc<Workers>, fence: Fence) -> Self {
        Self { workers, fence }
    }
}

impl Future for FenceWait {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Self { workers, fence } = &*self;
        if !fence.is_known_done() {
            if fence.timeline().device().is_cpu() {
                // The host's own timelines wake at once; there is nothing to ask a driver.
                if !fence.timeline().wake_at(fence.point(), context.waker()) {
                    return Poll::Pending;
                }
            } else {
                // A point that is reached from here on is found by the worker that is told now.
                if workers.fences.add(fence, context.waker().clone()) {
                    workers.announce();
                }
                return Poll::Pending;
            }
        }
        // The point is reached: this returns the outcome and does not block.
        Poll::Ready(fence.wait())
    }
}

impl std::fmt::Debug for FenceWait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FenceWait").field("fence", &self.fence).finish_non_exhaustive()
    }
}
