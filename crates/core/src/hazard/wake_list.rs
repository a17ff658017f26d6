//! Tasks that wait for a claim to end, woken once no lock is held.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

/// Tasks to be woken, when this is dropped: behind the last of several changes, since a task may run where it is woken, and
/// would wait there for what its own thread has yet to resolve.
#[derive(Default)]
pub(crate) struct WakeList(Option<Box<Wakers>>);

/// Most often there are none, and to see that should take no time.
#[derive(Default)]
struct Wakers(Vec<Waker>);

impl WakeList {
    /// As dropping it.
    #[inline]
    pub(crate) fn wake(self) {
        match self.0 {
            None => {}
            Some(tasks) => drop(tasks),
        }
    }

    pub(super) fn add(&mut self, mut wakers: Vec<Waker>) {
        if !wakers.is_empty() {
            self.0.get_or_insert_default().0.append(&mut wakers);
        }
    }
}

impl Drop for Wakers {
    fn drop(&mut self) {
        self.0.drain(..).for_each(wake);
    }
}

/// Wakes a task. That runs the user's code: its panic is its own, and to drop what it panicked with may panic again.
pub(crate) fn wake(waker: Waker) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        std::mem::forget(payload);
    }
}
