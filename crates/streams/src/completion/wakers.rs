//! Wakers of tasks that wait for a stream's points, sorted by point.
//!
//! Wakers are code of other crates: they are cloned, woken and dropped without a lock, and a panic in one does not
//! affect others.

use std::{collections::VecDeque, task::Waker};

use transload_core::catch_panic;

/// Thousands of tasks may wait. Adding is a binary search, taking the reached ones a search and a move, without
/// allocations within the capacity.
#[derive(Default)]
pub(crate) struct Wakers {
    /// Sorted by point, then by what [`Waker::will_wake`] compares.
    waiting: VecDeque<(u64, Waker)>,
}

fn key(point: u64, waker: &Waker) -> (u64, usize, usize) {
    (point, waker.data().addr(), std::ptr::from_ref(waker.vtable()).addr())
}

impl Wakers {
    /// Returns an empty list with this capacity.
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

    /// Adds a waker for a point; returns it if already present, for the caller to drop without the lock.
    pub(crate) fn add(&mut self, point: u64, waker: Waker) -> Option<Waker> {
        match self.find(point, &waker) {
            Ok(_) => Some(waker),
            Err(index) => {
                self.waiting.insert(index, (point, waker));
                None
            }
        }
    }

    /// Returns the first point waited for.
    pub(crate) fn first(&self) -> Option<u64> {
        self.waiting.front().map(|(point, _)| *point)
    }

    /// Moves the wakers of reached points to `into`.
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
