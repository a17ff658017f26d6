//! A device timeline whose points complete when the test says so, and which counts its calls.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    thread,
};

use parking_lot::Mutex;
use transload_core::{DeviceId, Error, ErrorKind, Fence, Result, Timeline, TimelineId, next_timeline_id};

pub(crate) struct Gate {
    id: TimelineId,
    /// Points enqueued and completed, and calls received.
    pub(crate) enqueued: AtomicU64,
    done: AtomicU64,
    known: AtomicU64,
    failing: AtomicU64,
    wakers: Mutex<Vec<(u64, Waker)>>,
    pub(crate) polls: AtomicUsize,
    pub(crate) registered: AtomicUsize,
    pub(crate) asked_for: AtomicU64,
    inside: AtomicUsize,
    pub(crate) most_inside: AtomicUsize,
    /// Blocks a poll while true.
    pub(crate) stuck: AtomicBool,
    /// Blocks a poll that found its point pending while true.
    pub(crate) stuck_after_looking: AtomicBool,
    /// How many polls that has blocked.
    pub(crate) stuck_polls: AtomicUsize,
    /// Blocks a registration of a waker while true.
    pub(crate) stuck_in_wake_at: AtomicBool,
    /// How many worker calls of the named kind panic.
    pub(crate) panics: Mutex<(&'static str, usize)>,
    /// Whether it completes only when the user acts.
    pub(crate) held: AtomicBool,
    /// How often a poll yields before it returns.
    pub(crate) lingering: AtomicUsize,
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            id: next_timeline_id(),
            enqueued: AtomicU64::new(u64::MAX),
            done: AtomicU64::new(0),
            known: AtomicU64::new(0),
            failing: AtomicU64::new(u64::MAX),
            wakers: Mutex::default(),
            polls: AtomicUsize::new(0),
            registered: AtomicUsize::new(0),
            asked_for: AtomicU64::new(0),
            inside: AtomicUsize::new(0),
            most_inside: AtomicUsize::new(0),
            stuck: AtomicBool::new(false),
            stuck_after_looking: AtomicBool::new(false),
            stuck_polls: AtomicUsize::new(0),
            stuck_in_wake_at: AtomicBool::new(false),
            panics: Mutex::default(),
            held: AtomicBool::new(false),
            lingering: AtomicUsize::new(0),
        })
    }

    pub(crate) fn fence(self: &Arc<Self>, point: u64) -> Fence {
        Fence::new(Arc::clone(self) as Arc<dyn Timeline>, point)
    }

    /// Completes `point` and calls wakers, like a driver callback.
    pub(crate) fn reach(&self, point: u64) {
        self.reach_silently(point);
        let mut wakers = self.wakers.lock();
        let (due, left) = std::mem::take(&mut *wakers).into_iter().partition(|(at, _)| *at <= point);
        *wakers = left;
        drop(wakers);
        let due: Vec<_> = due;
        due.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Completes `point` without calling wakers.
    pub(crate) fn reach_silently(&self, point: u64) {
        self.done.fetch_max(point, Ordering::SeqCst);
    }

    /// Makes `point` fail once it completes.
    pub(crate) fn fail(&self, point: u64) {
        self.failing.store(point, Ordering::SeqCst);
    }

    /// Panics if a panic is injected for this kind of call.
    fn may_panic(&self, kind: &str) {
        let mut panics = self.panics.lock();
        let by_worker = thread::current().name().is_some_and(|name| name.starts_with("transload-"));
        if by_worker && panics.0 == kind && panics.1 > 0 {
            panics.1 -= 1;
            drop(panics);
            panic!("a timeline panics, on purpose");
        }
    }

    fn outcome(&self, point: u64) -> Result<()> {
        match self.failing.load(Ordering::SeqCst) == point {
            true => Err(Error::new(ErrorKind::Device, "fails, on purpose")),
            false => Ok(()),
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.may_panic("drop");
    }
}

// SAFETY: it has no work, so no memory is used.
unsafe impl Timeline for Gate {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Other("gate", 0)
    }

    fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::SeqCst)
    }

    fn reached(&self) -> u64 {
        let known = self.known.load(Ordering::SeqCst);
        if known > 0 {
            self.may_panic("reached");
        }
        known
    }

    fn poll(&self, point: u64) -> Result<bool> {
        self.may_panic("poll");
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_inside.fetch_max(inside, Ordering::SeqCst);
        self.asked_for.fetch_max(point, Ordering::SeqCst);
        self.polls.fetch_add(1, Ordering::SeqCst);
        (0..self.lingering.load(Ordering::SeqCst)).for_each(|_| thread::yield_now());
        while self.stuck.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let done = self.done.load(Ordering::SeqCst);
        if done < point && self.stuck_after_looking.load(Ordering::SeqCst) {
            self.stuck_polls.fetch_add(1, Ordering::SeqCst);
            while self.stuck_after_looking.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
        if done < point {
            return Ok(false);
        }
        self.known.fetch_max(point, Ordering::SeqCst);
        self.outcome(point).map(|()| true)
    }

    fn wait(&self, point: u64) -> Result<()> {
        assert!(self.reached() >= point, "a wait that blocks a worker");
        self.outcome(point)
    }

    fn wake_at(&self, point: u64, waker: &Waker) -> bool {
        self.may_panic("wake_at");
        self.registered.fetch_add(1, Ordering::SeqCst);
        while self.stuck_in_wake_at.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let mut wakers = self.wakers.lock();
        if self.done.load(Ordering::SeqCst) >= point {
            self.known.fetch_max(point, Ordering::SeqCst);
            return true;
        }
        wakers.push((point, waker.clone()));
        false
    }

    fn held_by_user(&self, _point: u64) -> Option<Error> {
        self.held.load(Ordering::SeqCst).then(|| Error::new(ErrorKind::Busy, "held by the test"))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
