//! The executor's events, in the situations that `transload_core::events` names. A program of its own with one test, since the
//! subscriber and the limit on threads are the process's.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../core/tests/shared/event_log.rs"]
mod event_log;
#[path = "../shared/no_threads.rs"]
mod no_threads;

use std::sync::mpsc;

use event_log::{count, find, record, record_with};
use no_threads::NoThreads;
use transload_core::{ErrorKind, events, events::report};
use transload_executor::{BlockingKey, DropQueue, Executor, Task};

struct Panicking;

impl Drop for Panicking {
    fn drop(&mut self) {
        panic!("planted panic");
    }
}

#[test]
fn owners_panics_and_refused_threads_are_reported() {
    let executor = Executor::with_threads(1).unwrap();
    let drops = DropQueue::new(executor.clone());
    let records = record(|| {
        drops.push(Box::new(1), Vec::new());
        drops.push(Box::new(Panicking), Vec::new());
        drops.drain().unwrap();
        executor.spawn(async { panic!("planted panic") }).wait().unwrap_err();
        executor.drain().unwrap();
    });
    let owners = find(&records, events::OWNER_DROPPED, events::THREADS, &["elapsed_ns"]);
    let panics = find(&records, events::PANIC_CAUGHT, events::THREADS, &["text"]);
    assert_eq!((owners.len(), panics.len()), (2, 2));
    assert!(panics.iter().all(|panic| panic.field("text") == Some("planted panic")));

    refused_threads_are_reported_once_and_later();
    subscriber_may_start_what_is_refused();
}

fn refused(records: &[event_log::Record]) -> Vec<&str> {
    let refused = find(records, events::THREAD_REFUSED, events::THREADS, &["error"]);
    refused.iter().map(|record| record.field("what").unwrap()).collect()
}

/// Spawns a task that occupies a worker, and waits until it does.
fn occupy(executor: &Executor) -> (mpsc::Sender<()>, Task<()>) {
    let (begun, begins) = mpsc::channel();
    let (end, ends) = mpsc::channel();
    let task = executor.spawn(async move {
        begun.send(()).unwrap();
        let _ended = ends.recv();
    });
    begins.recv().unwrap();
    (end, task)
}

fn refused_threads_are_reported_once_and_later() {
    let idle = Executor::with_threads(1).unwrap();
    let mut before = 0;
    let records = record(|| {
        let none = NoThreads::new();
        for _ in 0..2 {
            idle.spawn(async {}).wait().unwrap_err();
            idle.spawn_thread(|| ()).wait().unwrap_err();
            idle.spawn_blocking(&BlockingKey::new(1), || ()).wait().unwrap_err();
        }
        before = count();
        drop(none);
        idle.drain().unwrap();
    });
    assert_eq!(before, 0, "the caller may hold what the subscriber waits for");
    assert_eq!(refused(&records), ["worker of the executor", "a long call", "calls that may block"]);

    let executor = Executor::with_threads(2).unwrap();
    let records = record(|| {
        let (end, busy) = occupy(&executor);
        let none = NoThreads::new();
        let waiting = [(); 3].map(|()| executor.spawn(async {}));
        executor.spawn_thread(|| ()).wait().unwrap_err();
        drop(none);
        assert!(waiting.iter().all(|task| !task.is_finished()));
        executor.spawn_thread(|| ()).wait().unwrap();
        let none = NoThreads::new();
        executor.spawn_thread(|| ()).wait().unwrap_err();
        drop((end, none));
        waiting.into_iter().chain([busy]).for_each(|task| task.wait().unwrap());
        executor.drain().unwrap();
    });
    assert_eq!(refused(&records), ["worker of the executor", "a long call", "a long call"]);
}

fn subscriber_may_start_what_is_refused() {
    let (executor, key) = (Executor::with_threads(1).unwrap(), BlockingKey::new(2));
    let theirs = (executor.clone(), key.clone());
    let (ended, ends) = mpsc::channel();
    let hook = move || {
        let nested = theirs.0.spawn_blocking(&theirs.1, || ());
        ended.send(nested.is_finished().then(|| nested.wait().unwrap_err().kind())).unwrap();
    };
    record_with(hook, || {
        let none = NoThreads::new();
        drop(executor.spawn_blocking(&key, || ()));
        report::emit_deferred();
        drop(none);
    });
    assert_eq!(ends.recv().unwrap(), Some(ErrorKind::Io));
}
