//! Whoever awaits is woken: the reactor neither rests while someone comes, nor gives a stream up that someone awaits.

use std::task::Waker;

use loom::{sync::Notify, thread};

use crate::{
    model,
    registration::{Desk, Watch},
    sync::{Arc, AtomicU64, Ordering},
    wakers::Wakers,
};

/// Adds a task, as a stream does. Returns whether the reactor's thread is to be unparked.
fn awaits(desk: &Desk<()>, watch: &Arc<Watch<()>>, point: u64) -> bool {
    let mut wakers = watch.wakers.lock();
    assert!(wakers.add(point, Waker::noop().clone()).is_none());
    watch.note(&wakers);
    drop(wakers);
    desk.notice(watch)
}

/// The reactor's loop until so many were woken, whose work is all over. It gives up every stream that it may.
fn serve(desk: &Desk<()>, unparked: &Notify, woken: &AtomicU64, tasks: u64) {
    let mut watches: Vec<Arc<Watch<()>>> = Vec::new();
    loop {
        desk.take(&mut watches);
        for watch in &watches {
            watch.take_fresh();
            if watch.is_awaited() {
                let mut over = Vec::new();
                let mut wakers = watch.wakers.lock();
                wakers.take_reached(u64::MAX, &mut over);
                watch.note(&wakers);
                drop(wakers);
                woken.fetch_add(over.len() as u64, Ordering::Relaxed);
            }
        }
        if woken.load(Ordering::Relaxed) == tasks {
            return;
        }
        watches.retain(|watch| !desk.give_up(watch));
        if desk.rest(&watches, true) {
            unparked.wait();
            desk.rested();
        }
    }
}

fn check(tasks: &'static [&'static [u64]]) {
    model(move || {
        let (desk, woken) = (Arc::new(Desk::new(4)), Arc::new(AtomicU64::new(0)));
        let watch = Arc::new(Watch::new((), Wakers::default()));
        // As `park` and `unpark`, which loom's own are not for a thread that waits for a lock.
        let unparked = Arc::new(Notify::new());
        let all = tasks.iter().map(|points| points.len() as u64).sum();
        let reactor = {
            let (desk, unparked, woken) = (Arc::clone(&desk), Arc::clone(&unparked), Arc::clone(&woken));
            thread::spawn(move || serve(&desk, &unparked, &woken, all))
        };
        let come = |points: &[u64], unparked: &Notify, desk: &Desk<()>, watch: &Arc<Watch<()>>| {
            for point in points {
                if awaits(desk, watch, *point) {
                    unparked.notify();
                }
            }
        };
        let others: Vec<_> = tasks[1..]
            .iter()
            .map(|points| {
                let (desk, watch, unparked) = (Arc::clone(&desk), Arc::clone(&watch), Arc::clone(&unparked));
                thread::spawn(move || come(points, &unparked, &desk, &watch))
            })
            .collect();
        come(tasks[0], &unparked, &desk, &watch);
        others.into_iter().for_each(|other| other.join().unwrap());
        // Where a task is left asleep, loom finds that nobody can run any more.
        reactor.join().unwrap();
        assert!(!watch.is_awaited());
    });
}

#[test]
fn awaiting_again_and_again_wakes_a_resting_reactor() {
    check(&[&[1, 2]]);
}

#[test]
fn two_threads_that_await_at_once_are_both_served() {
    check(&[&[1], &[2]]);
}
