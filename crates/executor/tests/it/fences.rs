//! A task that awaits a fence occupies no thread, is woken, and delays no other.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    task::{Context, RawWaker, RawWakerVTable, Waker},
    thread,
};

use transload_core::ErrorKind;

use crate::{executor, gate::Gate, until, within_limit};

#[test]
fn awaited_fence_occupies_no_worker() {
    within_limit(String::new, || {
        let executor = executor(1);
        let gates: Vec<_> = (0..20).map(|_| Gate::new()).collect();
        let waiting: Vec<_> = gates
            .iter()
            .map(|gate| {
                let wait = executor.fence(&gate.fence(1));
                executor.spawn(async move { wait.await.unwrap() })
            })
            .collect();
        assert_eq!(executor.spawn(async { 5 }).wait().unwrap(), 5);
        assert!(waiting.iter().all(|task| !task.is_finished()));
        gates.iter().rev().for_each(|gate| gate.reach(1));
        waiting.into_iter().for_each(|task| task.wait().unwrap());
    });
}

#[test]
fn wait_for_a_point_not_enqueued_yet_ends_with_the_last_that_is() {
    within_limit(String::new, || {
        let (executor, gate) = (executor(1), Gate::new());
        gate.enqueued.store(1, Ordering::SeqCst);
        let wait = executor.fence(&gate.fence(1000));
        let waiting = executor.spawn(async move { wait.await.unwrap() });
        until("the fence is polled", || gate.polls.load(Ordering::SeqCst) > 0);
        assert!(!waiting.is_finished());
        gate.reach(1);
        waiting.wait().unwrap();
    });
}

#[test]
fn awaited_fence_keeps_the_executor_of_a_dropped_handle() {
    within_limit(String::new, || {
        let (executor, gate) = (executor(1), Gate::new());
        let wait = executor.fence(&gate.fence(1));
        drop(executor);
        let waiting = thread::spawn(|| pollster::block_on(wait));
        until("the fence is polled", || gate.polls.load(Ordering::SeqCst) > 0);
        gate.reach(1);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn dropped_wait_keeps_neither_its_timeline_nor_the_workers() {
    within_limit(String::new, || {
        let (executor, gate) = (executor(1), Gate::new());
        let mut wait = Box::pin(executor.fence(&gate.fence(1)));
        let polled = async move {
            std::future::poll_fn(|context| {
                assert!(wait.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
        };
        executor.spawn(polled).wait().unwrap();
        drop(executor);
        until("only the test has the timeline", || Arc::strong_count(&gate) == 1);
    });
}

#[test]
fn idle_worker_polls_before_it_sleeps() {
    within_limit(String::new, || {
        let executor = executor(1);
        for _ in 0..100 {
            let gate = Gate::new();
            gate.reach_silently(1);
            let wait = executor.fence(&gate.fence(1));
            executor.spawn(async move { wait.await.unwrap() }).wait().unwrap();
            assert_eq!(gate.registered.load(Ordering::SeqCst), 0, "the driver was given a waker");
        }
    });
}

#[test]
fn sleeping_workers_are_woken_by_the_timeline() {
    within_limit(String::new, || {
        let executor = executor(3);
        for _ in 0..20 {
            let gate = Gate::new();
            let tasks: Vec<_> = (1..=3)
                .map(|point| {
                    let wait = executor.fence(&gate.fence(point));
                    executor.spawn(async move { wait.await.unwrap() })
                })
                .collect();
            for (point, task) in (1..).zip(tasks) {
                until("the waker for the earliest point", || gate.registered.load(Ordering::SeqCst) >= point);
                gate.reach(point as u64);
                task.wait().unwrap();
            }
        }
    });
}

#[test]
fn only_the_earliest_point_is_polled_by_one_worker_at_a_time() {
    within_limit(String::new, || {
        let executor = executor(8);
        let gate = Gate::new();
        gate.lingering.store(10, Ordering::SeqCst);
        let tasks: Vec<_> = (1..=50)
            .map(|point| {
                // Registered from here on, whenever its task starts.
                let mut wait = executor.fence(&gate.fence(point));
                assert!(pin!(&mut wait).poll(&mut Context::from_waker(Waker::noop())).is_pending());
                executor.spawn(async move { wait.await.unwrap() })
            })
            .collect();
        until("a first poll", || gate.polls.load(Ordering::SeqCst) > 0);
        for (point, task) in (1..=50_u64).zip(tasks) {
            gate.reach(point);
            task.wait().unwrap();
            assert!(gate.asked_for.load(Ordering::SeqCst) <= 50.min(point + 1));
        }
        assert_eq!(gate.most_inside.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn driver_that_does_not_return_delays_no_other_timeline() {
    let (stuck, free) = (Gate::new(), Gate::new());
    let place = {
        let (stuck, free) = (Arc::clone(&stuck), Arc::clone(&free));
        move || {
            let polls = [&stuck, &free].map(|gate| gate.polls.load(Ordering::SeqCst));
            format!("polls of the stuck timeline and of the other: {polls:?}")
        }
    };
    within_limit(place, move || {
        let executor = executor(2);
        stuck.stuck.store(true, Ordering::SeqCst);
        let wait = executor.fence(&stuck.fence(1));
        let late = executor.spawn(async move { wait.await.unwrap() });
        until("a worker is in the driver", || stuck.polls.load(Ordering::SeqCst) > 0);
        for point in 1..=100 {
            let wait = executor.fence(&free.fence(point));
            let task = executor.spawn(async move { wait.await.unwrap() });
            free.reach(point);
            task.wait().unwrap();
        }
        assert!(!late.is_finished());
        stuck.stuck.store(false, Ordering::SeqCst);
        stuck.reach(1);
        late.wait().unwrap();
    });
}

#[test]
fn busy_workers_poll_between_tasks() {
    within_limit(String::new, || {
        let executor = executor(1);
        let gate = Gate::new();
        let (stop, stopped) = mpsc::channel::<()>();
        let busy = executor.spawn(async move {
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                transload_executor::yield_now().await;
            }
        });
        let wait = executor.fence(&gate.fence(1));
        let task = executor.spawn(async move { wait.await.unwrap() });
        until("a poll", || gate.polls.load(Ordering::SeqCst) > 0);
        gate.reach_silently(1);
        task.wait().unwrap();
        stop.send(()).unwrap();
        busy.wait().unwrap();
    });
}

#[test]
fn fence_error_is_returned_to_the_awaiting_task() {
    within_limit(String::new, || {
        let executor = executor(2);
        let gate = Gate::new();
        gate.fail(2);
        let [first, second] = [1, 2].map(|point| executor.spawn(executor.fence(&gate.fence(point))));
        gate.reach(2);
        first.wait().unwrap().unwrap();
        assert_eq!(second.wait().unwrap().unwrap_err().kind(), ErrorKind::Device);
        // Even if no task has to wait for it.
        assert_eq!(pollster::block_on(executor.fence(&gate.fence(2))).unwrap_err().kind(), ErrorKind::Device);
    });
}

#[test]
fn dropped_wait_releases_the_timeline_after_the_point() {
    within_limit(String::new, || {
        let executor = executor(1);
        let gate = Gate::new();
        let wait = executor.fence(&gate.fence(1));
        let (go, gone) = mpsc::channel::<()>();
        let task = executor.spawn(async move {
            let mut wait = std::pin::pin!(wait);
            let polled =
                std::future::poll_fn(|context| std::task::Poll::Ready(wait.as_mut().poll(context))).await;
            gone.recv().unwrap();
            polled.is_pending()
        });
        go.send(()).unwrap();
        assert!(task.wait().unwrap());
        gate.reach(1);
        until("the executor lets the timeline go", || Arc::strong_count(&gate) == 1);
        thread::yield_now();
    });
}

#[test]
fn each_parked_fence_is_polled_a_bounded_number_of_times() {
    const FENCES: usize = 400;
    within_limit(String::new, || {
        let executor = executor(2);
        let gates: Vec<_> = (0..FENCES).map(|_| Gate::new()).collect();
        let tasks: Vec<_> = gates
            .iter()
            .map(|gate| {
                let wait = executor.fence(&gate.fence(1));
                executor.spawn(async move { wait.await.unwrap() })
            })
            .collect();
        let registered = || gates.iter().all(|gate| gate.registered.load(Ordering::SeqCst) > 0);
        until("a waker for each timeline", registered);
        let questions = || {
            let of =
                |gate: &Arc<Gate>| gate.polls.load(Ordering::SeqCst) + gate.registered.load(Ordering::SeqCst);
            gates.iter().map(of).sum::<usize>()
        };
        // Before they were parked, an idle worker may have asked any number of times.
        let (mut ended, begun) = (0, questions());
        let mut last = begun;
        // The last few may be polled any number of times by an idle worker.
        for (gate, task) in gates.iter().zip(tasks).take(FENCES - 20) {
            gate.reach(1);
            task.wait().unwrap();
            ended += 1;
            last = questions();
        }
        let asked = last - begun;
        assert!(asked <= 3 * FENCES, "{asked} questions for {ended} of {FENCES} fences");
        gates.iter().for_each(|gate| gate.reach(1));
        executor.drain().unwrap();
    });
}

/// A waker whose clone and drop run the test's code.
struct WakerHooks(Box<dyn Fn() + Send + Sync>);

impl WakerHooks {
    const TABLE: RawWakerVTable = RawWakerVTable::new(Self::clone, Self::drop, |_| {}, Self::drop);

    fn waker(hook: impl Fn() + Send + Sync + 'static) -> Waker {
        let hooks = Arc::new(Self(Box::new(hook)));
        // SAFETY: the table's functions take a pointer that counts one handle of the `Arc`.
        unsafe { Waker::from_raw(RawWaker::new(Arc::into_raw(hooks).cast(), &Self::TABLE)) }
    }

    unsafe fn clone(data: *const ()) -> RawWaker {
        // SAFETY: the pointer came from `Arc::into_raw`, and its handle is alive; it is not dropped here.
        let hooks = std::mem::ManuallyDrop::new(unsafe { Arc::from_raw(data.cast::<Self>()) });
        (hooks.0)();
        RawWaker::new(Arc::into_raw(Arc::clone(&hooks)).cast(), &Self::TABLE)
    }

    unsafe fn drop(data: *const ()) {
        // SAFETY: as above; this handle is given up.
        let hooks = unsafe { Arc::from_raw(data.cast::<Self>()) };
        (hooks.0)();
    }
}

#[test]
fn wakers_are_cloned_woken_and_dropped_outside_locks() {
    within_limit(String::new, || {
        let executor = executor(1);
        let (gate, other) = (Gate::new(), Gate::new());
        let (calls, counted) = (Arc::new(AtomicU64::new(0)), executor.clone());
        let hook = {
            let (calls, point) = (Arc::clone(&calls), AtomicU64::new(1));
            move || {
                calls.fetch_add(1, Ordering::SeqCst);
                // Registers another fence, which would deadlock if the list were locked.
                let mut wait = pin!(counted.fence(&other.fence(point.fetch_add(1, Ordering::SeqCst))));
                assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
        };
        let waker = WakerHooks::waker(hook);
        let mut context = Context::from_waker(&waker);
        let (mut one, mut same) =
            (pin!(executor.fence(&gate.fence(1))), pin!(executor.fence(&gate.fence(1))));
        // A new wait, the same again, and the same from another future of the point.
        for _ in 0..2 {
            assert!(one.as_mut().poll(&mut context).is_pending());
            assert!(same.as_mut().poll(&mut context).is_pending());
        }
        // Four clones, of which three were duplicates and dropped.
        assert_eq!(calls.load(Ordering::SeqCst), 7);
        gate.reach(1);
        until("the fourth is woken", || calls.load(Ordering::SeqCst) == 8);
    });
}
