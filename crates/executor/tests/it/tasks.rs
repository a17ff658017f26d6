//! Tasks run to their end, fairly, and return their results.

use std::{
    future::{pending, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::Poll,
    thread,
};

use transload_core::{ErrorKind, StreamPriority};
use transload_executor::{BlockingKey, Executor, yield_now};

use crate::{executor, until, within_limit};

#[test]
fn result_is_awaited_and_waited_for() {
    let executor = executor(2);
    assert_eq!(executor.spawn(async { 3 }).wait().unwrap(), 3);
    assert_eq!(pollster::block_on(executor.spawn(async { "text" })).unwrap(), "text");
    let inner = executor.spawn(async { 4 });
    assert_eq!(executor.spawn(async move { inner.await.unwrap() + 1 }).wait().unwrap(), 5);
}

#[test]
fn dropped_handle_lets_the_task_run_to_its_end() {
    let executor = executor(1);
    let (tell, told) = mpsc::channel();
    drop(executor.spawn(async move {
        yield_now().await;
        tell.send(7).unwrap();
    }));
    assert_eq!(told.recv().unwrap(), 7);
}

#[test]
fn small_task_does_not_wait_for_an_earlier_large_one() {
    within_limit(String::new, || {
        let executor = executor(1);
        let chunks = Arc::new(AtomicUsize::new(0));
        let (begin, begun) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let count = Arc::clone(&chunks);
        let large = executor.spawn(async move {
            begin.send(()).unwrap();
            gone.recv().unwrap();
            for _ in 0..1000 {
                count.fetch_add(1, Ordering::SeqCst);
                yield_now().await;
            }
        });
        begun.recv().unwrap();
        let small: Vec<_> = (0..3)
            .map(|_| {
                let chunks = Arc::clone(&chunks);
                executor.spawn(async move { chunks.load(Ordering::SeqCst) })
            })
            .collect();
        go.send(()).unwrap();
        for task in small {
            assert_eq!(task.wait().unwrap(), 1, "chunks before the small task");
        }
        large.wait().unwrap();
    });
}

#[test]
fn higher_priority_runs_first() {
    within_limit(String::new, || {
        let executor = executor(1);
        let (begin, begun) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        drop(executor.spawn(async move {
            begin.send(()).unwrap();
            gone.recv().unwrap();
        }));
        begun.recv().unwrap();
        let (tell, told) = mpsc::channel();
        for priority in [StreamPriority::Low, StreamPriority::Normal, StreamPriority::High] {
            let tell = tell.clone();
            drop(executor.spawn_at(priority, async move { tell.send(priority).unwrap() }));
        }
        drop(tell);
        go.send(()).unwrap();
        let order: Vec<_> = told.into_iter().collect();
        assert_eq!(order, [StreamPriority::High, StreamPriority::Normal, StreamPriority::Low]);
    });
}

#[test]
fn task_that_nothing_can_wake_ends_as_interrupted() {
    within_limit(String::new, || {
        let executor = executor(1);
        let error = executor.spawn(pending::<()>()).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        executor.drain().unwrap();
    });
}

#[test]
fn waiting_on_a_worker_is_refused() {
    within_limit(String::new, || {
        let executor = executor(1);
        let theirs = executor.clone();
        let kind = executor.spawn(async move { theirs.spawn(async {}).wait().unwrap_err().kind() });
        assert_eq!(kind.wait().unwrap(), ErrorKind::Unsupported);
    });
}

#[test]
fn blocking_call_may_wait_for_a_task() {
    within_limit(String::new, || {
        let executor = executor(1);
        let theirs = executor.clone();
        let call =
            executor.spawn_blocking(&BlockingKey::new(1), move || theirs.spawn(async { 6 }).wait().unwrap());
        assert_eq!(call.wait().unwrap(), 6);
    });
}

#[test]
fn wakes_from_many_threads_are_not_lost() {
    within_limit(String::new, || {
        const WAKES: usize = 2000;
        let executor = executor(3);
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let (wakers, theirs) = mpsc::channel::<std::task::Waker>();
                thread::spawn(move || theirs.into_iter().for_each(std::task::Waker::wake));
                let mut left = WAKES;
                executor.spawn(poll_fn(move |context| {
                    left -= 1;
                    if left == 0 {
                        return Poll::Ready(());
                    }
                    wakers.send(context.waker().clone()).unwrap();
                    Poll::Pending
                }))
            })
            .collect();
        tasks.into_iter().for_each(|task| task.wait().unwrap());
    });
}

#[test]
fn thread_count_out_of_range_is_refused() {
    for threads in [0, 1025, usize::MAX] {
        let error = Executor::with_threads(threads).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("1 to 1024"), "{error}");
    }
    assert_eq!(Executor::with_threads(5).unwrap().threads(), 5);
    assert!((1..=16).contains(&Executor::shared().threads()));
}

#[test]
fn task_awaits_a_blocking_call() {
    within_limit(String::new, || {
        let executor = executor(1);
        let key = BlockingKey::new(1);
        let theirs = executor.clone();
        let task = executor.spawn(async move {
            let mut sum = 0;
            for number in 0..10 {
                sum += theirs.spawn_blocking(&key, move || number).await.unwrap();
            }
            sum
        });
        assert_eq!(task.wait().unwrap(), 45);
    });
}

#[test]
fn is_finished_does_not_block() {
    let executor = executor(1);
    let task = executor.spawn(async {});
    until("the task ends", || task.is_finished());
    task.wait().unwrap();
}
