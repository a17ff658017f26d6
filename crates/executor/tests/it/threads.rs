//! Threads are bounded, named, started when needed, and end after the last handle and the last task.

use std::{
    cell::RefCell,
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use parking_lot::Mutex;
use transload_executor::{BlockingKey, Executor};

use crate::{executor, gate::Gate, until, within_limit};

/// Counts threads that ran a call and have not ended.
#[derive(Default)]
struct Seen {
    alive: AtomicUsize,
    most: AtomicUsize,
    names: Mutex<HashSet<String>>,
}

struct ThreadCount(Arc<Seen>);

impl Drop for ThreadCount {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

thread_local! {
    static THREAD_COUNT: RefCell<Option<ThreadCount>> = const { RefCell::new(None) };
}

impl Seen {
    fn note(self: &Arc<Self>) {
        THREAD_COUNT.with_borrow_mut(|here| {
            here.get_or_insert_with(|| {
                let alive = self.alive.fetch_add(1, Ordering::SeqCst) + 1;
                self.most.fetch_max(alive, Ordering::SeqCst);
                self.names.lock().insert(thread::current().name().unwrap_or_default().to_owned());
                ThreadCount(Arc::clone(self))
            });
        });
    }
}

fn exercise(executor: &Executor, seen: &Arc<Seen>) {
    let key = BlockingKey::new(2);
    for _ in 0..200 {
        let (one, other) = (Arc::clone(seen), Arc::clone(seen));
        drop(executor.spawn(async move { one.note() }));
        drop(executor.spawn_blocking(&key, move || other.note()));
    }
    executor.drain().unwrap();
}

#[test]
fn threads_are_named_bounded_and_gone_after_the_last_handle() {
    within_limit(String::new, || {
        let seen = Arc::new(Seen::default());
        let executor = executor(3);
        exercise(&executor, &seen);
        let names = seen.names.lock().clone();
        assert!((1..=5).contains(&names.len()), "{names:?}");
        assert!(names.iter().all(|name| name.starts_with("transload-")), "{names:?}");
        assert!(seen.alive.load(Ordering::SeqCst) > 0);
        let group = executor.group();
        drop(executor);
        exercise(&group, &seen);
        drop(group);
        until("every thread ends", || seen.alive.load(Ordering::SeqCst) == 0);
    });
}

#[test]
fn spare_threads_are_bounded_by_the_keys_limits() {
    within_limit(String::new, || {
        for bounds in [&[1][..], &[1, 1], &[1, 2, 3]] {
            let (executor, seen) = (executor(1), Arc::new(Seen::default()));
            let keys: Vec<_> = bounds.iter().map(|most| BlockingKey::new(*most)).collect();
            let call = |key| {
                let seen = Arc::clone(&seen);
                executor.spawn_blocking(key, move || seen.note())
            };
            // A call right after the last one ended, and concurrent calls of all keys.
            for _ in 0..100 {
                keys.iter().for_each(|key| call(key).wait().unwrap());
                keys.iter().cycle().take(10).for_each(|key| drop(call(key)));
                executor.drain().unwrap();
            }
            let most = seen.most.load(Ordering::SeqCst);
            assert!((1..=bounds.iter().sum()).contains(&most), "{most} threads for {bounds:?}");
        }
    });
}

#[test]
fn tasks_in_flight_run_on_after_the_last_handle() {
    within_limit(String::new, || {
        let seen = Arc::new(Seen::default());
        let executor = executor(2);
        let gate = Gate::new();
        let (wait, theirs) = (executor.fence(&gate.fence(1)), Arc::clone(&seen));
        let task = executor.spawn(async move {
            wait.await.unwrap();
            theirs.note();
        });
        drop(executor);
        until("the workers sleep", || gate.registered.load(Ordering::SeqCst) > 0);
        gate.reach(1);
        task.wait().unwrap();
        until("every thread ends", || seen.alive.load(Ordering::SeqCst) == 0);
    });
}

#[test]
fn no_thread_starts_before_work() {
    let executors: Vec<_> = (0..2000).map(|_| executor(1024)).collect();
    assert_eq!(executors.len(), 2000);
}

#[test]
fn workers_woken_without_a_task_run_later_ones() {
    within_limit(String::new, || {
        let executor = executor(3);
        executor.wake(3);
        assert_eq!(executor.live_threads(), 0);
        for round in 0..200 {
            let several: Vec<_> = (0..3).map(|_| executor.spawn(async {})).collect();
            several.into_iter().for_each(|task| task.wait().unwrap());
            executor.wake(round % 4);
        }
        executor.drain().unwrap();
        assert!((1..=3).contains(&executor.live_threads()));
    });
}

#[test]
fn shared_executor_is_one() {
    within_limit(String::new, || {
        let (one, other) = (Executor::shared(), Executor::shared());
        let of = |executor: &Executor| {
            let names = Arc::new(Mutex::new(HashSet::new()));
            for _ in 0..500 {
                let names = Arc::clone(&names);
                drop(executor.spawn(async move {
                    names.lock().insert(thread::current().id());
                }));
            }
            executor.drain().unwrap();
            names.lock().clone()
        };
        let all: HashSet<_> = of(&one).union(&of(&other)).copied().collect();
        assert!(all.len() <= one.threads());
    });
}
