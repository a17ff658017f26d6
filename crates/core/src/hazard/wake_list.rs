//! Wakers of tasks that wait for a claim to end, called while no lock is held.

use std::task::Waker;

use crate::catch_panic;

/// Wakers, called on drop, after all table updates: `wake` may run a task inline that waits for a claim of
/// this thread.
#[derive(Default)]
pub(crate) struct WakeList(Option<Box<Wakers>>);

/// Boxed, since there are usually none and checking that must be cheap.
#[derive(Default)]
struct Wakers(Vec<Waker>);

impl WakeList {
    /// Wakes all tasks.
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

/// Wakes a task. Catches a panic of the user's code.
pub(crate) fn wake(waker: Waker) {
    let _panic = catch_panic(|| waker.wake());
}
