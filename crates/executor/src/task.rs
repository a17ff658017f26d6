//! The handle of a task, and the slot for its result.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::{Condvar, Mutex};
use transload_core::{Error, ErrorKind, Result};

use crate::{
    guarded::{discard, wake},
    workers::refuse_to_block,
};

/// A handle for a task's result: await it, or [`wait`](Self::wait) for it.
///
/// Dropping it detaches the task, which runs on to its end. May be used from any thread.
#[must_use = "dropping it detaches the task, and its error is lost"]
pub struct Task<T> {
    slot: Arc<Slot<T>>,
}

struct Slot<T> {
    state: Mutex<State<T>>,
    ended: Condvar,
}

enum State<T> {
    Running(Option<Waker>),
    Ended(Result<T>),
    Taken,
}

/// Ends a task of [`Task::pending`] with a result. If it is dropped without, the task ends with an error.
#[must_use = "the task ends with an error when this is dropped"]
pub struct Completer<T>(Arc<Slot<T>>);

impl<T> Task<T> {
    /// Returns a task that the caller ends, on any thread, by the completer.
    pub fn pending() -> (Self, Completer<T>) {
        let slot = Arc::new(Slot { state: Mutex::new(State::Running(None)), ended: Condvar::new() });
        (Self { slot: Arc::clone(&slot) }, Completer(slot))
    }

    /// Returns whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        !matches!(*self.slot.state.lock(), State::Running(_))
    }

    /// Blocks the calling thread until the task has ended.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] if the task panicked, or if nothing was left that could wake it;
    /// [`ErrorKind::Io`] if the system refused the first thread; [`ErrorKind::Unsupported`] on a worker of any
    /// executor, which must not block: await the task there.
    pub fn wait(self) -> Result<T> {
        let mut state = self.slot.state.lock();
        if matches!(*state, State::Running(_)) {
            refuse_to_block()?;
        }
        while matches!(*state, State::Running(_)) {
            self.slot.ended.wait(&mut state);
        }
        take(&mut state)
    }
}

fn take<T>(state: &mut State<T>) -> Result<T> {
    match mem::replace(state, State::Taken) {
        State::Ended(outcome) => outcome,
        _ => Err(Error::new(ErrorKind::Interrupted, "the task's result was taken already")),
    }
}

impl<T> Completer<T> {
    /// Ends the task, and wakes its waiters.
    pub fn complete(self, outcome: Result<T>) {
        self.put(outcome);
    }

    fn put(&self, outcome: Result<T>) {
        let mut state = self.0.state.lock();
        if !matches!(*state, State::Running(_)) {
            return;
        }
        let State::Running(waker) = mem::replace(&mut *state, State::Ended(outcome)) else { return };
        drop(state);
        self.0.ended.notify_all();
        waker.into_iter().for_each(wake);
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        if matches!(*self.0.state.lock(), State::Running(_)) {
            self.put(Err(Error::new(
                ErrorKind::Interrupted,
                "the task was dropped before its end; nothing was left that could wake it",
            )));
        }
    }
}

impl<T> Drop for Slot<T> {
    /// Runs on the last side: the destructor of an unused result is the caller's and may panic.
    fn drop(&mut self) {
        discard(mem::replace(self.state.get_mut(), State::Taken));
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        // A waker runs the caller's code, so it is cloned and dropped outside the lock.
        let waker = context.waker().clone();
        let mut state = self.slot.state.lock();
        if let State::Running(known) = &mut *state {
            let before = known.replace(waker);
            drop(state);
            drop(before);
            return Poll::Pending;
        }
        Poll::Ready(take(&mut state))
    }
}

impl<T> fmt::Debug for Completer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completer")
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("finished", &self.is_finished()).finish()
    }
}
