//! Blocking calls are bounded per key, and delay no other key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::Poll,
    thread,
};

use transload_core::ErrorKind;
use transload_executor::{BlockingKey, block_on};

use crate::{executor, until, within_limit};

#[test]
fn key_bounds_how_many_calls_run_at_once() {
    within_limit(String::new, || {
        for most in [1, 3] {
            let executor = executor(1);
            let key = BlockingKey::new(most);
            let (running, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let tasks: Vec<_> = (0..50)
                .map(|_| {
                    let (running, peak) = (Arc::clone(&running), Arc::clone(&peak));
                    executor.spawn_blocking(&key, move || {
                        peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| task.wait().unwrap());
            assert!((1..=most).contains(&peak.load(Ordering::SeqCst)), "{most}");
        }
    });
}

#[test]
fn calls_of_one_key_reach_its_bound() {
    within_limit(String::new, || {
        let executor = executor(1);
        let key = BlockingKey::new(4);
        let running = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let running = Arc::clone(&running);
                executor.spawn_blocking(&key, move || {
                    running.fetch_add(1, Ordering::SeqCst);
                    until("all four run at once", || running.load(Ordering::SeqCst) == 4);
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.wait().unwrap());
    });
}

#[test]
fn blocked_key_delays_no_other_key_or_worker() {
    within_limit(String::new, || {
        let executor = executor(1);
        let (stuck, free) = (BlockingKey::new(2), BlockingKey::new(1));
        let (go, gone) = mpsc::channel::<()>();
        let gone = Arc::new(parking_lot::Mutex::new(gone));
        let standing: Vec<_> = (0..10)
            .map(|_| {
                let gone = Arc::clone(&gone);
                executor.spawn_blocking(&stuck, move || gone.lock().recv().unwrap())
            })
            .collect();
        for number in 0..20 {
            assert_eq!(executor.spawn_blocking(&free, move || number).wait().unwrap(), number);
            assert_eq!(executor.spawn(async move { number }).wait().unwrap(), number);
        }
        assert!(standing.iter().all(|task| !task.is_finished()));
        (0..10).for_each(|_| go.send(()).unwrap());
        standing.into_iter().for_each(|task| task.wait().unwrap());
    });
}

#[test]
fn queued_calls_of_a_key_run_in_order() {
    within_limit(String::new, || {
        let executor = executor(1);
        let key = BlockingKey::new(1);
        let (tell, told) = mpsc::channel();
        for number in 0..100 {
            let tell = tell.clone();
            drop(executor.spawn_blocking(&key, move || tell.send(number).unwrap()));
        }
        drop(tell);
        assert!(told.into_iter().eq(0..100));
    });
}

#[test]
fn spawn_thread_may_wait_for_calls_and_is_drained() {
    within_limit(String::new, || {
        let executor = executor(1);
        let (theirs, key) = (executor.clone(), BlockingKey::new(1));
        let (go, gone) = mpsc::channel::<()>();
        let task = executor.spawn_thread(move || {
            gone.recv().unwrap();
            assert_eq!(theirs.drain().unwrap_err().kind(), ErrorKind::Unsupported);
            theirs.spawn_blocking(&key, || 7).wait().unwrap() + theirs.spawn(async { 1 }).wait().unwrap()
        });
        assert!(!task.is_finished());
        go.send(()).unwrap();
        executor.drain().unwrap();
        assert!(task.is_finished(), "the drain waited for it");
        assert_eq!(task.wait().unwrap(), 8);
        let panicked = executor.spawn_thread(|| panic!("by the test"));
        assert_eq!(panicked.wait().unwrap_err().kind(), ErrorKind::Interrupted);
    });
}

#[test]
fn block_on_polls_again_although_its_future_has_parked_the_thread() {
    within_limit(String::new, || {
        let mut polls = 0;
        let future = std::future::poll_fn(|context| {
            polls += 1;
            if polls > 1 {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            // As a nested `block_on` does.
            thread::park();
            Poll::Pending
        });
        block_on(future).unwrap();
        assert_eq!(polls, 2);
    });
}

#[test]
fn block_on_sleeps_until_woken_and_is_refused_on_a_worker() {
    within_limit(String::new, || {
        let executor = executor(1);
        let call = executor.spawn_blocking(&BlockingKey::new(1), || 5);
        assert_eq!(block_on(call).unwrap().unwrap(), 5);
        let refused = executor.spawn(async { block_on(async {}).unwrap_err().kind() });
        assert_eq!(refused.wait().unwrap(), ErrorKind::Unsupported);
    });
}
