//! Panics of the caller's code end one task and nothing else.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

use transload_core::{ErrorKind, StreamPriority};
use transload_executor::{BlockingKey, yield_now};

use crate::{executor, gate::Gate, until, within_limit};

struct PanicsOnDrop;

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("a destructor panics, on purpose");
    }
}

impl Wake for PanicsOnDrop {
    fn wake(self: Arc<Self>) {
        std::mem::forget(self);
        panic!("a waker panics, on purpose");
    }
}

#[test]
fn panic_ends_the_task_with_its_message() {
    within_limit(String::new, || {
        let executor = executor(1);
        let tasks = [
            executor.spawn(async { panic!("of number {}", 17) }),
            executor.spawn(async {
                yield_now().await;
                panic!("of number 17")
            }),
            executor.spawn_blocking(&BlockingKey::new(1), || panic!("of number 17")),
        ];
        for task in tasks {
            let error = task.wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Interrupted);
            assert!(error.to_string().contains("of number 17"), "{error}");
        }
        assert_eq!(executor.spawn(async { 1 }).wait().unwrap(), 1);
        executor.drain().unwrap();
    });
}

#[test]
fn panicking_destructor_ends_no_thread() {
    within_limit(String::new, || {
        let executor = executor(1);
        let key = BlockingKey::new(1);
        for _ in 0..3 {
            let held = PanicsOnDrop;
            let gate = Gate::new();
            let wait = executor.fence(&gate.fence(1));
            // In the future's state, in an unused result, in a value dropped with the last waker.
            drop(executor.spawn(async move {
                let _held = held;
                wait.await.unwrap();
            }));
            gate.reach(1);
            drop(executor.spawn(async { PanicsOnDrop }));
            drop(executor.spawn_blocking(&key, || PanicsOnDrop));
            let held = PanicsOnDrop;
            drop(executor.spawn(async move {
                let _held = held;
                std::future::pending::<()>().await;
            }));
            let held = PanicsOnDrop;
            drop(executor.spawn_blocking(&key, move || drop(held)));
        }
        executor.drain().unwrap();
        assert_eq!(executor.spawn(async { 1 }).wait().unwrap(), 1);
        assert_eq!(executor.spawn_blocking(&key, || 2).wait().unwrap(), 2);
    });
}

#[test]
fn panicking_waker_ends_no_thread() {
    within_limit(String::new, || {
        let executor = executor(1);
        for _ in 0..3 {
            let gate = Gate::new();
            let wait = executor.fence(&gate.fence(1));
            let mut task = executor.spawn(async move { wait.await.unwrap() });
            let mut direct = executor.fence(&gate.fence(1));
            let waker = Waker::from(Arc::new(PanicsOnDrop));
            let mut context = Context::from_waker(&waker);
            assert!(Future::poll(std::pin::Pin::new(&mut task), &mut context).is_pending());
            assert!(Future::poll(std::pin::Pin::new(&mut direct), &mut context).is_pending());
            std::mem::forget(waker);
            gate.reach(1);
            executor.drain().unwrap();
            task.wait().unwrap();
        }
        assert_eq!(executor.spawn(async { 1 }).wait().unwrap(), 1);
    });
}

#[test]
fn panic_while_submitting_a_batch_starts_none() {
    within_limit(String::new, || {
        let executor = executor(2);
        for _ in 0..100 {
            let ran = Arc::new(AtomicBool::new(false));
            let tasks = (0..4).map(|number| {
                assert!(number < 3, "an iterator panics, on purpose");
                let ran = Arc::clone(&ran);
                async move { ran.store(true, Ordering::SeqCst) }
            });
            let begin = || executor.spawn_all(StreamPriority::Normal, tasks);
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(begin));
            assert!(panicked.is_err());
            executor.drain().unwrap();
            assert_eq!((ran.load(Ordering::SeqCst), Arc::strong_count(&ran)), (false, 1));
        }
    });
}

#[test]
fn panicking_timeline_ends_no_thread() {
    for kind in ["poll", "wake_at", "reached", "drop"] {
        let place = move || format!("a panic in `{kind}`");
        within_limit(place, move || {
            let executor = executor(1);
            for _ in 0..50 {
                let gate = Gate::new();
                *gate.panics.lock() = (kind, 1);
                let woken = Arc::new(Woken::default());
                let waker = Waker::from(Arc::clone(&woken));
                let mut wait = executor.fence(&gate.fence(1));
                assert!(Future::poll(Pin::new(&mut wait), &mut Context::from_waker(&waker)).is_pending());
                // The worker's call holds the last reference to the timeline.
                drop(wait);
                gate.reach(1);
                drop(gate);
                until(&format!("a task is woken after a panic in `{kind}`"), || {
                    woken.0.load(Ordering::SeqCst)
                });
            }
            assert_eq!(executor.spawn(async { 1 }).wait().unwrap(), 1);
        });
    }
}
