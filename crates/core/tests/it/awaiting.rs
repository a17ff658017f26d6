//! Tasks await what blocks threads: a dropped future holds nothing and blocks nothing.

use std::{
    future::{Future, IntoFuture},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
};

use transload_core::{
    Access, Claims, ErrorKind, Fence, MemoryKind, Operation, RawBuffer, Reclaimer, Timing, TrySubmitError,
    Turns, submit_async, try_submit,
};

use crate::mock::{MockQueue, buffer, host_buffer, key, memory};

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls on this thread; a call that blocks hangs the test.
struct Hand {
    woken: Arc<Woken>,
    waker: Waker,
}

impl Hand {
    fn new() -> Self {
        let woken = Arc::new(Woken::default());
        Self { waker: Waker::from(Arc::clone(&woken)), woken }
    }

    fn poll<F: Future + ?Sized>(&self, future: &mut Pin<&mut F>) -> Poll<F::Output> {
        future.as_mut().poll(&mut Context::from_waker(&self.waker))
    }

    fn woken(&self) -> u64 {
        self.woken.0.load(Ordering::SeqCst)
    }
}

/// A queue that can wait for its own fences only.
fn lonely() -> MockQueue {
    let queue = MockQueue::new();
    queue.waits_for_own_only.store(true, Ordering::SeqCst);
    queue
}

fn is_send<T: Send>(value: T) -> T {
    value
}

#[test]
fn a_fence_is_awaited_and_its_error_comes_with_it() {
    let (hand, queue, dst) = (Hand::new(), MockQueue::new(), buffer(8));
    let (first, second) = (queue.write(&dst).unwrap(), queue.write(&dst).unwrap());
    let (mut done, mut failed) = (pin!(first.done()), pin!(is_send(second.clone().into_future())));
    assert!(hand.poll(&mut done).is_pending() && hand.poll(&mut failed).is_pending());
    queue.complete(1);
    assert_eq!(hand.woken(), 1);
    assert!(matches!(hand.poll(&mut done), Poll::Ready(Ok(()))));
    assert!(hand.poll(&mut failed).is_pending());
    queue.fail(2, "by the test");
    let Poll::Ready(Err(error)) = hand.poll(&mut failed) else { panic!("it failed") };
    assert_eq!(error.kind(), ErrorKind::Device);
    pollster::block_on(async { first.await }).unwrap();
}

#[test]
fn dropped_view_future_has_opened_nothing() {
    let (hand, queue, a, b) = (Hand::new(), MockQueue::new(), buffer(100), buffer(100));
    queue.copy(&a, &b).unwrap();
    {
        let mut writing = Box::pin(is_send(a.write_async()));
        assert!(hand.poll(&mut writing.as_mut()).is_pending());
        let mut reading = pin!(a.read_async());
        assert!(matches!(hand.poll(&mut reading), Poll::Ready(Ok(_))), "reading beside a reader");
    }
    queue.copy(&a, &b).unwrap();
    let mut reading = pin!(is_send(b.read_async()));
    assert!(hand.poll(&mut reading).is_pending());
    queue.complete(1);
    assert!(hand.poll(&mut reading).is_pending(), "the second copy writes it too");
    // Failed work is complete; its awaiter gets the error.
    queue.fail(2, "by the test");
    let Poll::Ready(Ok(view)) = hand.poll(&mut reading) else { panic!("it is over") };
    assert_eq!(queue.copy(&a, &b).unwrap_err().kind(), ErrorKind::Busy);
    let refused = pollster::block_on(b.write_async()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "views are not waited for");
    drop(view);
    pollster::block_on(b.write_async()).unwrap()[0] = 1;
    assert_eq!(pollster::block_on(b.read_async()).unwrap()[..2], [1, 0]);
    let (far, _) = memory(&Arc::default(), MemoryKind::Device, 8, true);
    assert_eq!(pollster::block_on(far.read_async()).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn an_idle_buffer_is_awaited_with_the_first_error() {
    let (hand, queue, dst) = (Hand::new(), MockQueue::new(), buffer(8));
    pollster::block_on(dst.wait_idle_async()).unwrap();
    queue.write(&dst.slice(..4).unwrap()).unwrap();
    queue.write(&dst.slice(4..).unwrap()).unwrap();
    let part = dst.slice(..1).unwrap();
    let mut idle = pin!(is_send(part.wait_idle_async()));
    assert!(hand.poll(&mut idle).is_pending());
    queue.fail(1, "by the test");
    assert!(hand.poll(&mut idle).is_pending(), "the other half of the allocation is written");
    queue.complete(2);
    assert!(matches!(hand.poll(&mut idle), Poll::Ready(Err(_))));
}

#[test]
fn submission_awaits_only_foreign_fences() {
    let (hand, theirs, ours) = (Hand::new(), MockQueue::new(), lonely());
    let (a, b) = (buffer(64), buffer(64));
    theirs.write(&a).unwrap();
    let copy = Operation::Copy { src: &a, dst: &b };
    {
        let mut dropped = Box::pin(is_send(submit_async(&ours, &copy, Timing::Off)));
        assert!(hand.poll(&mut dropped.as_mut()).is_pending());
    }
    let Err(TrySubmitError::WouldBlock(_)) = try_submit(&ours, &copy, Timing::Off, &Turns::default()) else {
        panic!("it would wait")
    };
    assert_eq!(ours.count(), 0);
    // A dropped or completed future holds no claim: both buffers can be claimed without waiting.
    theirs.write(&b).unwrap();
    let mut submitting = pin!(submit_async(&ours, &copy, Timing::Off));
    assert!(hand.poll(&mut submitting).is_pending());
    theirs.complete(1);
    assert!(hand.poll(&mut submitting).is_pending(), "b is still written");
    theirs.fail(2, "by the test");
    let Poll::Ready(Ok(fence)) = hand.poll(&mut submitting) else { panic!("nothing is in the way") };
    assert!(!fence.is_known_complete() && ours.last_after().is_empty());
    // A queue waits for its own work.
    let Ok(_) = try_submit(&ours, &Operation::Copy { src: &b, dst: &a }, Timing::Off, &Turns::default())
    else {
        panic!("its own fence")
    };
    assert_eq!(ours.last_after(), [key(&fence)], "once for both buffers");
    ours.complete(2);
}

/// A driver copies pageable memory during the call, which would otherwise wait for earlier work.
#[test]
fn device_copy_of_pageable_memory_waits_for_earlier_work() {
    for (kind, blocked) in [(MemoryKind::Pageable, true), (MemoryKind::Pinned, false)] {
        let (queue, src, dst) = (MockQueue::new(), host_buffer(kind, 64), buffer(64));
        queue.write(&dst).unwrap();
        let copy = Operation::Copy { src: &src, dst: &dst };
        let tried = try_submit(&queue, &copy, Timing::Off, &Turns::default());
        assert_eq!(matches!(tried, Err(TrySubmitError::WouldBlock(_))), blocked, "{kind}: {tried:?}");
        queue.complete(1);
        pollster::block_on(submit_async(&queue, &copy, Timing::Off)).unwrap();
        queue.complete(3);
    }
}

/// A timeline that must be polled, since `reached` stays behind.
#[test]
fn work_complete_only_by_poll_blocks_nothing() {
    let (theirs, ours) = (MockQueue::new(), lonely());
    let a = buffer(64);
    theirs.write(&a).unwrap();
    theirs.silently_over.store(true, Ordering::SeqCst);
    let fill = Operation::Fill { dst: &a, pattern: transload_core::Pattern::U8(1) };
    let Ok(_) = try_submit(&ours, &fill, Timing::Off, &Turns::default()) else { panic!("it is over") };
    assert!(ours.last_after().is_empty(), "what the queue cannot wait for is not given to it");
}

#[test]
fn other_threads_claim_is_awaited_until_commit() {
    let (hand, queue, a, b) = (Hand::new(), MockQueue::new(), buffer(64), buffer(64));
    let copy = Operation::Copy { src: &a, dst: &b };
    let claims = Claims::acquire(&mut [(&b, Access::Read)]).unwrap();
    let (mut submitting, mut reading) =
        (pin!(submit_async(&queue, &copy, Timing::Off)), pin!(b.write_async()));
    assert!(hand.poll(&mut submitting).is_pending() && hand.poll(&mut reading).is_pending());
    assert!(hand.poll(&mut submitting).is_pending());
    // An abandoned task is woken without effect.
    let mut gave_up = Box::pin(submit_async(&queue, &copy, Timing::Off));
    assert!(hand.poll(&mut gave_up.as_mut()).is_pending());
    drop(gave_up);
    thread::scope(|scope| {
        scope.spawn(|| drop(claims));
    });
    assert!(hand.woken() >= 1);
    assert!(matches!(hand.poll(&mut submitting), Poll::Ready(Ok(_))));
    assert!(hand.poll(&mut reading).is_pending(), "the copy came first");
    queue.complete(1);
    assert!(matches!(hand.poll(&mut reading), Poll::Ready(Ok(_))));
}

#[test]
fn a_waker_that_panics_leaves_no_claim_behind() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("by the test");
        }
    }
    let (queue, a, b) = (MockQueue::new(), buffer(64), buffer(64));
    let claims = Claims::acquire(&mut [(&a, Access::Write), (&b, Access::Write)]).unwrap();
    let mut reading = pin!(a.read_async());
    let waker = Waker::from(Arc::new(Panics));
    assert!(reading.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(claims);
    // With a leaked claim this would block forever.
    queue.copy(&a, &b).unwrap();
    queue.complete(1);
}

#[test]
fn dropped_future_leaves_memory_to_its_operations() {
    let (hand, queue) = (Hand::new(), MockQueue::new());
    let reclaimer: Arc<Reclaimer> = Arc::default();
    let (dst, freed) = memory(&reclaimer, MemoryKind::Pageable, 8, true);
    let fence: Fence = queue.write(&dst).unwrap();
    let mut waits: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
    for _ in 0..3 {
        let (theirs, done): (RawBuffer, _) = (dst.clone(), fence.done());
        waits.push(Box::pin(async move { drop(theirs.read_async().await) }));
        waits.push(Box::pin(async move { drop(done.await) }));
    }
    for wait in &mut waits {
        assert!(hand.poll(&mut wait.as_mut()).is_pending());
    }
    drop((waits, dst));
    reclaimer.sweep();
    assert!(!freed.load(Ordering::SeqCst), "the operation still writes");
    queue.complete(1);
    reclaimer.sweep();
    assert!(freed.load(Ordering::SeqCst));
}

type Task = Box<dyn FnOnce() + Send>;

/// An executor that runs its task inline in `wake`.
struct Inline(std::sync::Mutex<Option<Task>>);

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let task = self.0.lock().unwrap().take();
        if let Some(task) = task {
            task();
        }
    }
}

#[test]
fn task_run_inline_by_wake_meets_no_claim_of_its_thread() {
    let (one, two) = (host_buffer(MemoryKind::Pageable, 64), host_buffer(MemoryKind::Pageable, 64));
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for which in [true, false] {
            let claims = Claims::acquire(&mut [(&one, Access::Write), (&two, Access::Write)]).unwrap();
            let (awaited, looked_at) = if which { (&one, two.clone()) } else { (&two, one.clone()) };
            let done = sender.clone();
            let task = move || {
                drop(looked_at.read().unwrap());
                done.send(()).unwrap();
            };
            let waker = Waker::from(Arc::new(Inline(std::sync::Mutex::new(Some(Box::new(task))))));
            let mut reading = pin!(awaited.read_async());
            assert!(reading.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop(claims);
        }
    });
    for _ in 0..2 {
        let limit = std::time::Duration::from_secs(60);
        receiver.recv_timeout(limit).expect("the thread waits for its own claim");
    }
}
