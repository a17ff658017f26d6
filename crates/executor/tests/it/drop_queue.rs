//! Values of a queue are dropped once, on a spare thread, after their work.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use transload_core::ErrorKind;
use transload_executor::DropQueue;

use crate::{executor, gate::Gate, until, within_limit};

/// Calls a closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn value(on_drop: impl FnMut() + Send + 'static) -> Box<dyn Any + Send> {
    Box::new(OnDrop(on_drop))
}

/// Returns a value that counts its drops, and the count.
fn counted() -> (Box<dyn Any + Send>, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&count);
    let counts = value(move || _ = theirs.fetch_add(1, Ordering::SeqCst));
    (counts, count)
}

#[test]
fn value_is_dropped_on_a_spare_thread() {
    within_limit(String::new, || {
        let queue = DropQueue::new(executor(1));
        let (sender, dropped) = mpsc::channel();
        let name = move || sender.send(thread::current().name().map(str::to_owned)).unwrap();
        queue.push(value(name), Vec::new());
        let name = dropped.recv().unwrap().unwrap_or_default();
        assert!(name.starts_with("transload-"), "{name}");
        queue.drain().unwrap();
        assert!(queue.is_empty());
    });
}

#[test]
fn value_is_dropped_after_what_is_enqueued_before_a_later_point() {
    within_limit(String::new, || {
        let (queue, gate) = (DropQueue::new(executor(1)), Gate::new());
        gate.enqueued.store(1, Ordering::SeqCst);
        let (value, count) = counted();
        queue.push(value, vec![gate.fence(1000)]);
        until("the waker", || gate.registered.load(Ordering::SeqCst) == 1);
        assert_eq!(count.load(Ordering::SeqCst), 0);
        gate.reach(1);
        queue.drain().unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn value_is_dropped_after_all_its_fences() {
    within_limit(String::new, || {
        let queue = DropQueue::new(executor(1));
        let (first, second) = (Gate::new(), Gate::new());
        let (value, count) = counted();
        first.stuck_in_wake_at.store(true, Ordering::SeqCst);
        queue.push(value, vec![first.fence(1), second.fence(1)]);
        until("the first waker", || first.registered.load(Ordering::SeqCst) == 1);
        // In the list and in the hands of a thread, a value is one.
        assert_eq!(queue.len(), 1);
        first.stuck_in_wake_at.store(false, Ordering::SeqCst);
        first.reach(1);
        until("the second waker", || second.registered.load(Ordering::SeqCst) == 1);
        assert_eq!((queue.len(), count.load(Ordering::SeqCst)), (1, 0));
        second.reach(1);
        until("the drop", || count.load(Ordering::SeqCst) == 1);
        queue.drain().unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn failed_work_counts_as_complete() {
    within_limit(String::new, || {
        let queue = DropQueue::new(executor(1));
        let gate = Gate::new();
        gate.fail(1);
        let (value, count) = counted();
        queue.push(value, vec![gate.fence(1)]);
        until("its waker", || gate.registered.load(Ordering::SeqCst) == 1);
        gate.reach(1);
        until("the drop", || count.load(Ordering::SeqCst) == 1);
    });
}

#[test]
fn blocked_or_panicking_drop_delays_no_other() {
    within_limit(String::new, || {
        let queue = DropQueue::new(executor(1));
        let (go, gone) = mpsc::channel::<()>();
        queue.push(value(move || _ = gone.recv()), Vec::new());
        queue.push(value(|| panic!("a destructor panics, on purpose")), Vec::new());
        let (value, count) = counted();
        queue.push(value, Vec::new());
        until("the drop", || count.load(Ordering::SeqCst) == 1);
        until("the panic", || queue.len() == 1);
        let draining = thread::spawn({
            let queue = queue.clone();
            move || queue.drain()
        });
        assert!(!draining.is_finished());
        go.send(()).unwrap();
        draining.join().unwrap().unwrap();
        assert!(queue.is_empty());
    });
}

#[test]
fn drain_waits_for_the_drop_that_runs() {
    within_limit(String::new, || {
        for _ in 0..100 {
            let queue = DropQueue::new(executor(1));
            let count = Arc::new(AtomicUsize::new(0));
            let theirs = Arc::clone(&count);
            let slow = move || {
                // Time for a drain that does not wait to return.
                (0..100).for_each(|_| thread::yield_now());
                theirs.fetch_add(1, Ordering::SeqCst);
            };
            queue.push(value(slow), Vec::new());
            queue.drain().unwrap();
            assert_eq!((count.load(Ordering::SeqCst), queue.len()), (1, 0));
        }
    });
}

#[test]
fn value_that_pushes_in_its_drop_ends_and_may_not_drain() {
    within_limit(String::new, || {
        let queue = DropQueue::new(executor(1));
        let (inner, count) = counted();
        let (theirs, mut inner) = (queue.clone(), Some(inner));
        let (refused, kinds) = mpsc::channel();
        let nested = move || {
            theirs.push(inner.take().unwrap(), Vec::new());
            refused.send(theirs.drain().unwrap_err().kind()).unwrap();
        };
        queue.push(value(nested), Vec::new());
        queue.drain().unwrap();
        assert_eq!(kinds.try_recv().unwrap(), ErrorKind::Unsupported);
        assert_eq!(count.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn value_outlives_its_queue_until_its_work_is_complete() {
    within_limit(String::new, || {
        let queue = DropQueue::new(executor(1));
        let gate = Gate::new();
        let (value, count) = counted();
        queue.push(value, vec![gate.fence(1)]);
        until("its waker", || gate.registered.load(Ordering::SeqCst) == 1);
        drop(queue);
        assert_eq!(count.load(Ordering::SeqCst), 0);
        gate.reach(1);
        until("the drop", || count.load(Ordering::SeqCst) == 1);
    });
}

#[test]
fn value_held_by_the_user_outlives_its_queue() {
    within_limit(String::new, || {
        let queue = DropQueue::new(executor(1));
        let gate = Gate::new();
        gate.held.store(true, Ordering::SeqCst);
        let (value, count) = counted();
        queue.push(value, vec![gate.fence(1)]);
        assert_eq!(queue.drain().unwrap_err().kind(), ErrorKind::Busy);
        drop(queue);
        assert_eq!(count.load(Ordering::SeqCst), 0);
        gate.held.store(false, Ordering::SeqCst);
        gate.reach(1);
        let another = DropQueue::new(executor(1));
        until("the drop", || {
            another.push(counted().0, Vec::new());
            count.load(Ordering::SeqCst) == 1
        });
    });
}

#[test]
fn work_held_by_the_user_is_reported_and_checked_again() {
    within_limit(String::new, || {
        let queue = DropQueue::new(executor(1));
        let gate = Gate::new();
        gate.held.store(true, Ordering::SeqCst);
        let (value, count) = counted();
        queue.push(value, vec![gate.fence(1)]);
        assert_eq!(queue.drain().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!((count.load(Ordering::SeqCst), queue.len()), (0, 1));
        gate.held.store(false, Ordering::SeqCst);
        gate.reach(1);
        queue.push(counted().0, Vec::new());
        until("the drop", || count.load(Ordering::SeqCst) == 1);
        queue.drain().unwrap();
    });
}

#[test]
fn drain_keeps_the_first_error_when_a_drop_cannot_begin() {
    within_limit(String::new, || {
        let queue = DropQueue::new(executor(1));
        let gate = Gate::new();
        gate.held.store(true, Ordering::SeqCst);
        let fence = gate.fence(1);
        queue.push(counted().0, vec![fence.clone()]);
        assert_eq!(queue.drain().unwrap_err().kind(), ErrorKind::Busy);
        // The drain waits for work that has failed, and then the thread for the drop panics.
        gate.held.store(false, Ordering::SeqCst);
        gate.fail(1);
        gate.reach(1);
        assert!(fence.is_complete());
        *gate.panics.lock() = ("reached", 1);
        assert_eq!(queue.drain().unwrap_err().kind(), ErrorKind::Device);
        queue.drain().unwrap();
        assert!(queue.is_empty(), "the value was dropped by the panic");
    });
}
