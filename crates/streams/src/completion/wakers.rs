//! Tasks that wait for points of a stream, in the order of the points.
//!
//! Wakers are code of other crates: they are cloned, woken and dropped under no lock, and a panic in one ends nothing else.

use std::{collections::VecDeque, task::Waker};

use transload_core::catch_panic;

/// Points are mostly waited for in their order, thousands at once: adding one is a binary search, taking those that are over
/// a search and a move, and nothing is allocated once there was room.
#[derive(Default)]
pub(crate) struct Wakers {
    /// Sorted by point, then by what [`Waker::will_wake`] compares.
    waiting: VecDeque<(u64, Waker)>,
}

fn key(point: u64, waker: &Waker) -> (u64, usize, usize) {
    (point, waker.data().addr(), std::ptr::from_ref(waker.vtable()).addr())
}

impl Wakers {
    /// None, with room for so many.
    pub(crate) fn with_room(tasks: usize) -> Self {
        Self { waiting: VecDeque::with_capacity(tasks) }
    }

    fn find(&self, point: u64, waker: &Waker) -> Result<usize, usize> {
        self.waiting.binary_search_by_key(&key(point, waker), |(at, other)| key(*at, other))
    }

    /// Returns whether the waker is kept for the point.
    pub(crate) fn has(&self, point: u64, waker: &Waker) -> bool {
        self.find(point, waker).is_ok()
    }

    /// Keeps a waker for a point; returns it where it is kept already, for the caller to drop under no lock.
    pub(crate) fn add(&mut self, point: u64, waker: Waker) -> Option<Waker> {
        match self.find(point, &waker) {
            Ok(_) => Some(waker),
            Err(index) => {
                self.waiting.insert(index, (point, waker));
                None
            }
        }
    }

    /// The first point that someone waits for.
    pub(crate) fn first(&self) -> Option<u64> {
        self.waiting.front().map(|(point, _)| *point)
    }

    /// Moves those whose points are reached.
    pub(crate) fn take_reached(&mut self, reached: u64, into: &mut Vec<Waker>) {
        let over = self.waiting.partition_point(|(at, _)| *at <= reached);
        into.extend(self.waiting.drain(..over).map(|(_, waker)| waker));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        for (_, waker) in self.waiting.drain(..) {
            let _panic = catch_panic(|| drop(waker));
        }
    }
}
