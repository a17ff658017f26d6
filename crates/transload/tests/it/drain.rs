//! Drains that are awaited, and dropped: who gets the failure, and which threads they take.

use std::{
    collections::HashSet,
    pin::Pin,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread::{self, ThreadId},
};

use transload::{
    ErrorKind, Result, Runtime,
    backend::{Observer, TransferEvent, executor::BlockingKey},
};

use crate::array::host_only;

type Draining = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Leaves a failure that nobody observed.
fn fail_unobserved(rt: &Runtime) {
    let (long, short) = (rt.zeros::<u8>(8).unwrap(), rt.zeros::<u8>(7).unwrap());
    drop(rt.copy(&long, &short).submit());
}

/// Keeps drains from ending until the sender is dropped.
fn hold_drains(rt: &Runtime) -> mpsc::Sender<()> {
    let (ends, end) = mpsc::channel::<()>();
    drop(rt.manager().executor().spawn_blocking(&BlockingKey::new(1), move || end.recv()));
    ends
}

/// Sends the thread that wakes the task.
struct Woken(mpsc::Sender<ThreadId>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.send(thread::current().id()).unwrap();
    }
}

fn wakes() -> (Waker, mpsc::Receiver<ThreadId>) {
    let (woken, wakes) = mpsc::channel();
    (Arc::new(Woken(woken)).into(), wakes)
}

fn poll(draining: &mut Draining, waker: &Waker) -> Poll<Result<()>> {
    draining.as_mut().poll(&mut Context::from_waker(waker))
}

#[test]
fn dropped_drain_keeps_the_failure_for_the_next_one() {
    let rt = host_only();
    fail_unobserved(&rt);
    drop(rt.drain_async());
    assert_eq!(rt.drain().unwrap_err().kind(), ErrorKind::InvalidArgument, "not polled, it does nothing");

    fail_unobserved(&rt);
    let (waker, wakes) = wakes();
    let ends = hold_drains(&rt);
    let mut draining: Draining = Box::pin(rt.drain_async());
    assert!(poll(&mut draining, &waker).is_pending());
    drop(ends);
    wakes.recv().unwrap();
    drop(draining);
    assert_eq!(rt.manager().drain().unwrap_err().kind(), ErrorKind::InvalidArgument, "nobody has seen it");
    rt.drain().unwrap();

    fail_unobserved(&rt);
    pollster::block_on(rt.drain_async()).unwrap_err();
    rt.drain().unwrap();
}

#[test]
fn drain_that_failed_returns_its_failure_despite_another() {
    let rt = host_only();
    fail_unobserved(&rt);
    let (waker, wakes) = wakes();
    let ends = hold_drains(&rt);
    let mut draining: Draining = Box::pin(rt.drain_async());
    assert!(poll(&mut draining, &waker).is_pending());
    drop(ends);
    wakes.recv().unwrap();
    rt.drain().unwrap();
    let Poll::Ready(Err(error)) = poll(&mut draining, &waker) else { panic!("the drain did not fail") };
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn drains_dropped_in_a_loop_share_one_thread() {
    let rt = host_only();
    let (waker, wakes) = wakes();
    let ends = hold_drains(&rt);
    let mut awaited = Vec::new();
    for _ in 0..8 {
        // As by a timeout.
        let mut dropped: Draining = Box::pin(rt.drain_async());
        assert!(poll(&mut dropped, Waker::noop()).is_pending());
        drop(dropped);
        let mut draining: Draining = Box::pin(rt.drain_async());
        assert!(poll(&mut draining, &waker).is_pending());
        awaited.push(draining);
    }
    drop(ends);
    let threads: HashSet<ThreadId> = awaited.iter().map(|_| wakes.recv().unwrap()).collect();
    assert_eq!(threads.len(), 1);
    for mut draining in awaited {
        assert!(matches!(poll(&mut draining, &waker), Poll::Ready(Ok(()))));
    }
}

struct Nothing;

impl Observer for Nothing {
    fn transfer(&self, _: TransferEvent<'_>) {}
}

/// Keeps the thread that wakes the task until the test ends.
struct Holds(mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>);

impl Wake for Holds {
    fn wake(self: Arc<Self>) {
        self.0.send(()).unwrap();
        self.1.lock().unwrap().recv().unwrap_err();
    }
}

#[test]
fn runtime_dropped_after_an_awaited_drain_is_gone() {
    let observer = Arc::new(Nothing);
    let builder = crate::uncalibrated::builder().without("cuda").observer(Arc::clone(&observer) as _);
    let rt = builder.discover().unwrap();
    let ((woken, wakes), (ends, end)) = (mpsc::channel(), mpsc::channel::<()>());
    let waker = Arc::new(Holds(woken, Mutex::new(end))).into();
    let open = hold_drains(&rt);
    let mut draining: Draining = Box::pin(rt.drain_async());
    assert!(poll(&mut draining, &waker).is_pending());
    drop(open);
    wakes.recv().unwrap();
    assert!(matches!(poll(&mut draining, &waker), Poll::Ready(Ok(()))));
    drop((draining, rt));
    // The drain's thread still runs.
    assert_eq!(Arc::strong_count(&observer), 1);
    drop(ends);
}
