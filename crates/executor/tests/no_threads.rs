//! Work for which the system refuses a thread. A program of its own, since the limit applies to the process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

#[path = "shared/no_threads.rs"]
mod no_threads;

#[path = "it/gate.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod gate;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::{Context, Poll, Waker},
};

use gate::Gate;
use no_threads::NoThreads;
use transload_core::{ErrorKind, StreamPriority};
use transload_executor::{BlockingKey, DropQueue, Executor};

struct Panics;

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("by the test");
    }
}

#[test]
fn failed_thread_start_is_an_error_without_a_hang() {
    let (executor, key, other) =
        (Executor::with_threads(2).unwrap(), BlockingKey::new(1), BlockingKey::new(1));
    // The first worker. What the closures and futures hold panics when it is dropped.
    let none = NoThreads::new();
    let held = || Panics;
    assert_eq!(
        executor
            .spawn_thread({
                let held = held();
                move || drop(held)
            })
            .wait()
            .unwrap_err()
            .kind(),
        ErrorKind::Io
    );
    assert_eq!(
        executor
            .spawn({
                let held = held();
                async move { drop(held) }
            })
            .wait()
            .unwrap_err()
            .kind(),
        ErrorKind::Io
    );
    let detached = {
        let held = held();
        async move { drop(held) }
    };
    assert_eq!(executor.spawn_detached(StreamPriority::Normal, detached).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(executor.spawn(async {}).wait().unwrap_err().kind(), ErrorKind::Io);
    let refused = executor.spawn_detached(StreamPriority::Normal, async {}).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
    executor.drain().unwrap();
    let mut wait = executor.fence(&Gate::new().fence(1));
    let polled = Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop()));
    assert!(
        matches!(polled, Poll::Ready(Err(error)) if error.kind() == ErrorKind::Io),
        "nobody would poll it"
    );
    drop(none);
    assert_eq!(executor.spawn(async { 1 }).wait().unwrap(), 1);

    // A thread for one call.
    let none = NoThreads::new();
    assert_eq!(executor.spawn_thread(|| ()).wait().unwrap_err().kind(), ErrorKind::Io);
    executor.drain().unwrap();
    drop(none);
    assert_eq!(executor.spawn_thread(|| 4).wait().unwrap(), 4);

    // The first spare thread; tasks continue on the only worker.
    let none = NoThreads::new();
    for _ in 0..3 {
        assert_eq!(executor.spawn_blocking(&key, || ()).wait().unwrap_err().kind(), ErrorKind::Io);
    }
    assert!(!executor.try_spawn_blocking(|| ()));
    let tasks: Vec<_> = (0..10).map(|number| executor.spawn(async move { number })).collect();
    assert!(tasks.into_iter().map(|task| task.wait().unwrap()).eq(0..10));
    executor.drain().unwrap();
    drop(none);
    assert_eq!(executor.spawn_blocking(&key, || 2).wait().unwrap(), 2);
    assert!(executor.try_spawn_blocking(|| ()));
    executor.drain().unwrap();

    // A further spare thread, of an executor that has one: that takes the call after its own.
    let executor = Executor::with_threads(2).unwrap();
    let (go, gone) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    let standing = executor.spawn_blocking(&key, move || {
        begun.send(()).unwrap();
        gone.recv().unwrap();
    });
    begins.recv().unwrap();
    let none = NoThreads::new();
    let waiting = executor.spawn_blocking(&other, || 3);
    assert!(!waiting.is_finished());
    assert!(!executor.try_spawn_blocking(|| ()));
    go.send(()).unwrap();
    assert_eq!(waiting.wait().unwrap(), 3);
    standing.wait().unwrap();
    executor.drain().unwrap();
    drop(none);

    // The thread that would drop a value after its work, whose queue goes first.
    let (gate, dropped) = (Gate::new(), Arc::new(AtomicBool::new(false)));
    let none = NoThreads::new();
    let queue = DropQueue::new(Executor::with_threads(1).unwrap());
    queue.push(Box::new(Sets(Arc::clone(&dropped))), vec![gate.fence(1)]);
    drop(queue);
    assert!(!dropped.load(Ordering::SeqCst), "its work uses it");
    gate.reach(1);
    assert!(!dropped.load(Ordering::SeqCst), "no thread is there");
    drop(none);
    let another = DropQueue::new(executor);
    while !dropped.load(Ordering::SeqCst) {
        another.push(Box::new(()), Vec::new());
        another.drain().unwrap();
    }
}

/// Tells of its drop.
struct Sets(Arc<AtomicBool>);

impl Drop for Sets {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
