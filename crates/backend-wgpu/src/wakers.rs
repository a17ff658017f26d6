//! Wakes tasks that await points of a queue's timeline. One thread for each queue waits, and only while a task does.

use std::{sync::Arc, task::Waker, thread};

use parking_lot::{Condvar, Mutex};
use transload_core::{Timeline, catch_panic, events::report, mutant};

/// The tasks that wait, and the thread that wakes them.
#[derive(Default)]
pub(crate) struct Wakers {
    state: Mutex<State>,
    /// Notified when a task is added, and at the end.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    tasks: Vec<(u64, Waker)>,
    /// Kept alive while tasks wait, and only then: its drop ends the thread.
    queue: Option<Arc<dyn Timeline>>,
    has_thread: bool,
    is_closed: bool,
}

impl Wakers {
    /// Adds a task. Returns `false` if no thread can be started.
    pub(crate) fn add(self: &Arc<Self>, queue: Arc<dyn Timeline>, point: u64, waker: &Waker) -> bool {
        // A waker is user code: clone and drop it outside the lock.
        let waker = waker.clone();
        let mut state = self.state.lock();
        if !state.has_thread {
            let this = Arc::clone(self);
            let name = format!("transload {}", queue.device());
            if let Err(error) = thread::Builder::new().name(name).spawn(move || this.run()) {
                drop(state);
                report::thread_refused("to wake tasks; the polling thread waits instead", &error);
                return false;
            }
            state.has_thread = true;
        }
        // A future that is polled again passes the same waker.
        if state.tasks.iter().any(|(at, known)| *at == point && known.will_wake(&waker)) {
            drop(state);
            return true;
        }
        state.tasks.push((point, waker));
        let known = state.queue.replace(queue);
        drop(state);
        drop(known);
        self.changed.notify_one();
        true
    }

    /// Has the thread check for the end, or for the loss of the device.
    pub(crate) fn notify(&self) {
        self.changed.notify_one();
    }

    /// Ends the thread. The queue is being dropped, so no task waits.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.notify();
    }

    fn run(&self) {
        while let Some((queue, point)) = self.next() {
            // The next point and not the task's, since another task may wait for an earlier one meanwhile. It was submitted: a later
            // one was.
            let _known = queue.poll(point);
            let _outcome = queue.wait(queue.reached().saturating_add(1).min(point));
            let due = self.take_due(queue.reached());
            drop(queue);
            for waker in due.into_iter().filter(|_| !mutant!("wgpu/wake")) {
                // A waker is user code: ignore its panic.
                let _panic = catch_panic(|| waker.wake());
            }
        }
    }

    /// Waits until a task waits. Returns the earliest point, or `None` at the end.
    fn next(&self) -> Option<(Arc<dyn Timeline>, u64)> {
        let mut state = self.state.lock();
        loop {
            let earliest = state.tasks.iter().map(|(point, _)| *point).min();
            if let Some((queue, point)) = state.queue.clone().zip(earliest) {
                return Some((queue, point));
            }
            if state.is_closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Takes the tasks whose points are reached.
    fn take_due(&self, reached: u64) -> Vec<Waker> {
        let mut state = self.state.lock();
        let due =
            state.tasks.extract_if(.., |(point, _)| *point <= reached).map(|(_, waker)| waker).collect();
        let released = if state.tasks.is_empty() { state.queue.take() } else { None };
        drop(state);
        // Perhaps the last handle: its drop takes the lock.
        drop(released);
        due
    }
}

#[cfg(test)]
#[path = "../tests/unit/wakers.rs"]
mod tests;
