//! Chained timelines, each completed by the task that awaited the previous one: no wake is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{executor, gate::Gate, until, within_limit};

#[test]
fn chained_timelines_are_all_reached() {
    let ended = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ended);
    let place = move || format!("{} tasks ended", ended.load(Ordering::SeqCst));
    within_limit(place, move || {
        let executor = executor(2);
        for _ in 0..30 {
            let gates: Vec<_> = (0..=200).map(|_| Gate::new()).collect();
            let tasks: Vec<_> = gates
                .windows(2)
                .map(|pair| {
                    let (wait, next) = (executor.fence(&pair[0].fence(1)), Arc::clone(&pair[1]));
                    let count = Arc::clone(&count);
                    executor.spawn(async move {
                        wait.await.unwrap();
                        count.fetch_add(1, Ordering::SeqCst);
                        next.reach(1);
                    })
                })
                .collect();
            gates[0].reach(1);
            tasks.into_iter().for_each(|task| task.wait().unwrap());
        }
    });
}

#[test]
fn timeline_that_wakes_during_a_call_is_polled_again() {
    within_limit(String::new, || (0..20).for_each(|_| one_early_call()));
}

fn one_early_call() {
    let executor = executor(2);
    let (early, other) = (Gate::new(), Gate::new());
    let tasks = [&early, &other].map(|gate| executor.spawn(executor.fence(&gate.fence(1))));
    until("both timelines have the waker", || {
        [&early, &other].iter().all(|gate| gate.registered.load(Ordering::SeqCst) > 0)
    });
    early.stuck_after_looking.store(true, Ordering::SeqCst);
    until("a worker is in the driver, too early", || {
        drop(executor.spawn(async {}));
        early.stuck_polls.load(Ordering::SeqCst) > 0
    });
    // Read before the wake: the woken worker may poll once, and at once.
    let (polls, begun) = (other.polls.load(Ordering::SeqCst), Instant::now());
    early.reach(1);
    // The other worker was woken, and skips the timeline being called.
    until("the other worker polled, and searched longer than it does before it sleeps", || {
        other.polls.load(Ordering::SeqCst) > polls && begun.elapsed() > Duration::from_millis(20)
    });
    early.stuck_after_looking.store(false, Ordering::SeqCst);
    let [first, second] = tasks;
    first.wait().unwrap().unwrap();
    other.reach(1);
    second.wait().unwrap().unwrap();
}
