//! The tasks that wait for points of a timeline, woken by the reactor.

use std::{
    sync::{Arc, Weak},
    task::Waker,
};

use transload_core::catch_panic;

use super::{reactor::Reactor, registration::Registration, wakers::Wakers};

/// A timeline that the reactor polls while tasks wait for it.
pub(crate) trait Watched: Send + Sync {
    /// Queries the driver and moves the wakers of complete points to `woken`. Returns whether tasks still wait.
    fn wake_reached(&self, woken: &mut Vec<Waker>) -> bool;
}

/// A timeline's registration. It does not keep the timeline alive: a waiting task holds a fence, a callback its stream.
pub(crate) type TimelineRegistration = Registration<Weak<dyn Watched>>;

/// The tasks that wait for points of a timeline.
pub(crate) struct Waiters(Arc<TimelineRegistration>);

impl Waiters {
    /// Creates a list for a timeline, with room for some tasks.
    pub(crate) fn new(timeline: Weak<dyn Watched>, room: usize) -> Self {
        Self(Arc::new(Registration::new(timeline, Wakers::with_room(room))))
    }

    /// Keeps the waker until the timeline finds the point complete, and has the reactor poll the timeline.
    pub(crate) fn add(&self, reactor: &Reactor, point: u64, waker: &Waker) {
        let Self(registration) = self;
        if !registration.wakers.lock().has(point, waker) {
            // Clone and drop wakers without the lock: they are code of other crates.
            let waker = waker.clone();
            let mut wakers = registration.wakers.lock();
            let known = wakers.add(point, waker);
            registration.set_has_waiters(&wakers);
            drop(wakers);
            drop(known);
        }
        reactor.notify(registration);
    }

    /// Returns the first point waited for.
    pub(crate) fn first(&self) -> Option<u64> {
        self.0.wakers.lock().first()
    }

    /// Moves the wakers of reached points to `woken`. Returns whether tasks still wait.
    pub(crate) fn take_reached(&self, reached: u64, woken: &mut Vec<Waker>) -> bool {
        let mut wakers = self.0.wakers.lock();
        wakers.take_reached(reached, woken);
        self.0.set_has_waiters(&wakers);
        !wakers.is_empty()
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        // The reactor may keep the registration.
        let wakers = std::mem::take(&mut *self.0.wakers.lock());
        let _panic = catch_panic(|| drop(wakers));
    }
}
