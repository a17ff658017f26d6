//! The reactor wakes every awaiting task: it neither sleeps while one registers nor drops a stream that one awaits.

use std::task::Waker;

use loom::{sync::Notify, thread};

use crate::{
    model,
    registration::{ReactorQueue, Registration},
    sync::{Arc, AtomicU64, Ordering},
    wakers::Wakers,
};

/// Adds a task, as a stream does. Returns whether the reactor's thread is to be unparked.
fn awaits(queue: &ReactorQueue<()>, registration: &Arc<Registration<()>>, point: u64) -> bool {
    let mut wakers = registration.wakers.lock();
    assert!(wakers.add(point, Waker::noop().clone()).is_none());
    registration.set_has_waiters(&wakers);
    drop(wakers);
    queue.notify(registration)
}

/// The reactor's loop until that many tasks were woken, whose work is complete. Drops every stream that it may.
fn serve(queue: &ReactorQueue<()>, unparked: &Notify, woken: &AtomicU64, tasks: u64) {
    let mut registrations: Vec<Arc<Registration<()>>> = Vec::new();
    loop {
        queue.take(&mut registrations);
        for registration in &registrations {
            registration.take_new_waiter();
            if registration.has_waiters() {
                let mut over = Vec::new();
                let mut wakers = registration.wakers.lock();
                wakers.take_reached(u64::MAX, &mut over);
                registration.set_has_waiters(&wakers);
                drop(wakers);
                woken.fetch_add(over.len() as u64, Ordering::Relaxed);
            }
        }
        if woken.load(Ordering::Relaxed) == tasks {
            return;
        }
        registrations.retain(|registration| !queue.deregister(registration));
        if queue.try_park(&registrations, true) {
            unparked.wait();
            queue.unparked();
        }
    }
}

fn check(tasks: &'static [&'static [u64]]) {
    model(move || {
        let (queue, woken) = (Arc::new(ReactorQueue::new(4)), Arc::new(AtomicU64::new(0)));
        let registration = Arc::new(Registration::new((), Wakers::default()));
        // Replaces `park` and `unpark`: loom's do not suit a thread that waits for a lock.
        let unparked = Arc::new(Notify::new());
        let all = tasks.iter().map(|points| points.len() as u64).sum();
        let reactor = {
            let (queue, unparked, woken) = (Arc::clone(&queue), Arc::clone(&unparked), Arc::clone(&woken));
            thread::spawn(move || serve(&queue, &unparked, &woken, all))
        };
        let come = |points: &[u64],
                    unparked: &Notify,
                    queue: &ReactorQueue<()>,
                    registration: &Arc<Registration<()>>| {
            for point in points {
                if awaits(queue, registration, *point) {
                    unparked.notify();
                }
            }
        };
        let others: Vec<_> = tasks[1..]
            .iter()
            .map(|points| {
                let (queue, registration, unparked) =
                    (Arc::clone(&queue), Arc::clone(&registration), Arc::clone(&unparked));
                thread::spawn(move || come(points, &unparked, &queue, &registration))
            })
            .collect();
        come(tasks[0], &unparked, &queue, &registration);
        others.into_iter().for_each(|other| other.join().unwrap());
        // If a task is never woken, loom reports a deadlock.
        reactor.join().unwrap();
        assert!(!registration.has_waiters());
    });
}

#[test]
fn repeated_awaits_wake_a_sleeping_reactor() {
    check(&[&[1, 2]]);
}

#[test]
fn concurrent_awaits_of_two_threads_both_complete() {
    check(&[&[1], &[2]]);
}
