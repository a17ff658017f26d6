//! Draining waits for everything of its group and nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use transload_core::ErrorKind;
use transload_executor::{BlockingKey, Executor};

use crate::{executor, gate::Gate, until, within_limit};

/// Checks that `drain` does not return before `end` was called.
fn drains_only_after(executor: &Executor, end: impl FnOnce()) {
    let drained = Arc::new(AtomicBool::new(false));
    let (theirs, flag) = (executor.clone(), Arc::clone(&drained));
    let drain = thread::spawn(move || {
        theirs.drain().unwrap();
        flag.store(true, Ordering::SeqCst);
    });
    // Time for a drain that does not wait to return.
    (0..10_000).take_while(|_| !drain.is_finished()).for_each(|_| thread::yield_now());
    assert!(!drained.load(Ordering::SeqCst), "drained too early");
    end();
    until("the drain returns", || drain.is_finished());
    drain.join().unwrap();
}

#[test]
fn drain_waits_for_pending_tasks_blocking_calls_and_helpers() {
    within_limit(String::new, || {
        let executor = executor(2);
        executor.drain().unwrap();
        let gate = Gate::new();
        let wait = executor.fence(&gate.fence(1));
        drop(executor.spawn(async move { wait.await.unwrap() }));
        drains_only_after(&executor, || gate.reach(1));

        let (go, gone) = mpsc::channel::<()>();
        drop(executor.spawn_blocking(&BlockingKey::new(1), move || gone.recv().unwrap()));
        drains_only_after(&executor, || go.send(()).unwrap());

        let (go, gone) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel::<()>();
        let theirs = executor.clone();
        let helper = thread::spawn(move || {
            let _helping = theirs.helping();
            begin.send(()).unwrap();
            gone.recv().unwrap();
        });
        begun.recv().unwrap();
        drains_only_after(&executor, || go.send(()).unwrap());
        helper.join().unwrap();
    });
}

#[test]
fn drain_does_not_wait_for_other_groups() {
    within_limit(String::new, || {
        let first = executor(1);
        let second = first.group();
        let gate = Gate::new();
        let wait = first.fence(&gate.fence(1));
        let task = first.spawn(async move { wait.await.unwrap() });
        drop(second.spawn(async {}));
        second.drain().unwrap();
        assert!(!task.is_finished());
        drains_only_after(&first.clone(), || gate.reach(1));
    });
}

#[test]
fn drain_from_within_is_refused() {
    within_limit(String::new, || {
        let executor = executor(1);
        let drain = |executor: &Executor| executor.drain().unwrap_err().kind();
        let theirs = executor.clone();
        assert_eq!(executor.spawn(async move { drain(&theirs) }).wait().unwrap(), ErrorKind::Unsupported);
        let theirs = executor.clone();
        let call = executor.spawn_blocking(&BlockingKey::new(1), move || drain(&theirs));
        assert_eq!(call.wait().unwrap(), ErrorKind::Unsupported);
        let helping = executor.helping();
        assert_eq!(drain(&executor), ErrorKind::Unsupported);
        drop(helping);
        executor.drain().unwrap();
    });
}

#[test]
fn many_threads_drain_at_once() {
    within_limit(String::new, || {
        let executor = executor(2);
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        drop(executor.spawn(transload_executor::yield_now()));
                        executor.drain().unwrap();
                    }
                });
            }
        });
    });
}
