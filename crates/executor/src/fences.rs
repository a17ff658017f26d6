//! Fences awaited by tasks. One worker per timeline polls its earliest point, so that a driver call that does not return
//! blocks one worker and one timeline. Before workers sleep, the timeline gets a waker.

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

/// Up to this many timelines are all polled by an idle worker, which sees a completion earlier than a waker reports it.
/// Beyond that, each gets a waker at once and is polled again when it is called, so that the cost of n fences is
/// proportional to n.
const POLLED: usize = 16;

/// The awaited fences.
pub(crate) struct Fences {
    /// Sorted by timeline.
    timelines: Mutex<Vec<TimelineWaits>>,
    /// Length of `timelines`.
    awaited: AtomicUsize,
    /// Number of timelines that no worker is calling and that lack a waker for their earliest point. Changed under the lock.
    unregistered: AtomicUsize,
    /// Timelines that called their waker since the last poll.
    due: ConcurrentQueue<TimelineId>,
}

impl Default for Fences {
    fn default() -> Self {
        Self {
            timelines: Mutex::default(),
            awaited: AtomicUsize::new(0),
            unregistered: AtomicUsize::new(0),
            due: ConcurrentQueue::unbounded(),
        }
    }
}

/// The waits for one timeline.
struct TimelineWaits {
    id: TimelineId,
    timeline: Arc<dyn Timeline>,
    /// Sorted by point.
    waits: SmallVec<[(u64, Waker); 4]>,
    /// Whether a worker is calling the timeline.
    called: bool,
    /// Whether the timeline called a waker during that call, which may have been too early to see it.
    woken_in_call: bool,
    /// Point for which the timeline has a waker.
    registered: Option<u64>,
}

impl TimelineWaits {
    fn earliest(&self) -> Option<u64> {
        self.waits.first().map(|(point, _)| *point)
    }

    fn is_unregistered(&self) -> bool {
        !self.called && (self.registered.is_none() || self.registered != self.earliest())
    }
}

/// A worker's call of a timeline. Dropping it allows further calls, even after a panic of the timeline.
struct TimelineCall<'a> {
    fences: &'a Fences,
    fence: Fence,
    complete: bool,
    /// Latest point known to be complete, if this one is.
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

    /// Records that a timeline called its waker. The caller must also announce it to a worker.
    pub(crate) fn set_due(&self, timeline: TimelineId) {
        // The queue is neither bounded nor ever closed.
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
            let mut timelines = self.timelines.lock();
            if let Ok(at) = find(&timelines, id) {
                self.change(&mut timelines, at, |entry| {
                    if !transload_core::mutant!("executor/recall") {
                        entry.registered = None;
                    }
                    // Another worker may be registering, and must not keep the used waker as registered.
                    entry.woken_in_call = entry.called;
                });
            }
        }
        match self.awaited.load(Ordering::Relaxed) {
            0 => false,
            1..=POLLED => self.each(|_| true, around, |call| call.complete = call.fence.is_complete()),
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
        self.each(TimelineWaits::is_unregistered, around, |call| {
            let timeline = call.fence.timeline();
            call.complete =
                !transload_core::mutant!("executor/register") && call.fence.wake_at(&waker(timeline.id()));
            call.registered = !call.complete;
        })
    }

    fn each(
        &self,
        is_meant: impl Fn(&TimelineWaits) -> bool,
        mut around: impl FnMut(bool, &mut dyn FnMut()),
        ask: impl Fn(&mut TimelineCall<'_>),
    ) -> bool {
        let (mut last, mut ended) = (None, false);
        loop {
            let mut timelines = self.timelines.lock();
            let from = last.map_or(0, |last| timelines.partition_point(|entry| entry.id <= last));
            let free = |entry: &TimelineWaits| !entry.called && is_meant(entry);
            let Some(at) = timelines.iter().skip(from).position(free) else { return ended };
            let called = |entry: &mut TimelineWaits| {
                entry.called = !transload_core::mutant!("executor/one-caller");
                entry.earliest().map(|point| Fence::new(Arc::clone(&entry.timeline), point))
            };
            let Some(fence) = self.change(&mut timelines, from + at, called).flatten() else { return ended };
            drop(timelines);
            last = Some(fence.timeline().id());
            let others = self.unregistered.load(Ordering::Relaxed) > 0;
            let mut call =
                TimelineCall { fences: self, fence, complete: false, reached: 0, registered: false };
            // A timeline that panics breaks its contract, but must not end the thread.
            let ask = |call: &mut TimelineCall<'_>| {
                ask(call);
                if call.complete {
                    call.reached = call.fence.timeline().reached().max(call.fence.point());
                }
            };
            around(others, &mut || drop(catch_panic(|| ask(&mut call))));
            ended |= call.complete;
            // This may drop the last reference to the timeline.
            discard(call);
        }
    }

    /// Adds a wait. Returns whether it is new, so that a worker must be told.
    fn add(&self, fence: &Fence, waker: Waker) -> bool {
        let (id, point) = (fence.timeline().id(), fence.point());
        let mut timelines = self.timelines.lock();
        let at = find(&timelines, id).unwrap_or_else(|at| {
            let (timeline, waits) = (Arc::clone(fence.timeline()), SmallVec::new());
            timelines.insert(
                at,
                TimelineWaits { id, timeline, waits, called: false, woken_in_call: false, registered: None },
            );
            self.unregistered.fetch_add(1, Ordering::Relaxed);
            self.awaited.store(timelines.len(), Ordering::Relaxed);
            at
        });
        let known = self.change(&mut timelines, at, |entry| {
            let from = entry.waits.partition_point(|(known, _)| *known < point);
            let mut same = entry.waits.iter().skip(from).take_while(|(known, _)| *known == point);
            let is_new = !same.any(|(_, known)| known.will_wake(&waker));
            if is_new {
                entry.waits.insert(from, (point, waker));
                None
            } else {
                Some(waker)
            }
        });
        // A duplicate waker is dropped outside the lock, since its drop may run any code.
        drop(timelines);
        matches!(known, Some(None))
    }

    /// Drops the waits of futures that were dropped, once no other can be added. Their wakers may keep the workers.
    pub(crate) fn clear(&self) {
        let mut timelines = self.timelines.lock();
        let left = std::mem::take(&mut *timelines);
        self.awaited.store(0, Ordering::Relaxed);
        self.unregistered.store(0, Ordering::Relaxed);
        drop(timelines);
        discard(left);
    }

    /// Changes a timeline's waits and updates `unregistered`.
    fn change<T>(
        &self,
        timelines: &mut [TimelineWaits],
        at: usize,
        change: impl FnOnce(&mut TimelineWaits) -> T,
    ) -> Option<T> {
        let entry = timelines.get_mut(at)?;
        let before = usize::from(entry.is_unregistered());
        let changed = change(entry);
        let after = usize::from(entry.is_unregistered());
        let count = self.unregistered.load(Ordering::Relaxed);
        self.unregistered.store(count + after - before, Ordering::Relaxed);
        Some(changed)
    }
}

/// Finds the index of a timeline's waits, or where to insert them.
fn find(timelines: &[TimelineWaits], id: TimelineId) -> std::result::Result<usize, usize> {
    timelines.binary_search_by_key(&id, |entry| entry.id)
}

impl Drop for TimelineCall<'_> {
    fn drop(&mut self) {
        let (id, point) = (self.fence.timeline().id(), self.fence.point());
        let mut timelines = self.fences.timelines.lock();
        let Ok(at) = find(&timelines, id) else { return };
        let ended = |entry: &mut TimelineWaits| {
            entry.called = false;
            let woken = std::mem::take(&mut entry.woken_in_call);
            if self.registered && !woken {
                entry.registered = Some(point);
            }
            let due = entry.waits.partition_point(|(point, _)| *point <= self.reached);
            let due: SmallVec<[(u64, Waker); 4]> = entry.waits.drain(..due).collect();
            (due, entry.waits.is_empty())
        };
        let Some((due, is_empty)) = self.fences.change(&mut timelines, at, ended) else { return };
        let empty = is_empty.then(|| {
            // Without waits it has no earliest point, so it counts as unregistered.
            self.fences.unregistered.fetch_sub(1, Ordering::Relaxed);
            timelines.remove(at)
        });
        self.fences.awaited.store(timelines.len(), Ordering::Relaxed);
        drop(timelines);
        // Dropped outside the lock.
        drop(empty);
        due.into_iter().for_each(|(_, waker)| wake(waker));
    }
}

/// Completes when the fence does; see [`Executor::fence`](crate::Executor::fence). `handle` keeps the workers from ending.
pub(crate) fn complete<H: Send + Unpin>(
    workers: Arc<Workers>,
    handle: H,
    fence: Fence,
) -> impl Future<Output = Result<()>> + Send + Unpin {
    poll_fn(move |context| {
        let _until_dropped = &handle;
        let timeline = fence.timeline();
        if !fence.is_known_complete() {
            // Host timelines call their waker themselves; there is no driver to poll.
            let is_hosts = timeline.device().is_cpu();
            if is_hosts && !fence.wake_at(context.waker()) {
                return Poll::Pending;
            }
            if !is_hosts {
                workers.start_first()?;
                // The worker that is woken now finds a point that completes from here on.
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
