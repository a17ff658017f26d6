//! Waiters get turns, so later work cannot starve them.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use transload_core::{
    Access, Claims, Fence, Operation, Pattern, RawBuffer, Timing, TrySubmitError, Turns, submit,
    submit_async, try_submit,
};

use crate::mock::{MockQueue, buffer};

const OVERTAKES: usize = 16;
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::<Woken>::default());
    future.as_mut().poll(&mut Context::from_waker(&waker))
}

fn try_write(queue: &MockQueue, dst: &RawBuffer) -> Result<Fence, TrySubmitError> {
    try_submit(queue, &Operation::Fill { dst, pattern: Pattern::U8(1) }, Timing::Off, &Turns::default())
}

/// Overtakes a waiter as often as possible; returns how often, and what blocked the next one.
fn overtake(queue: &MockQueue, dst: &RawBuffer) -> (usize, Option<TrySubmitError>) {
    for done in 0..10 * OVERTAKES {
        if let Err(blocked) = try_write(queue, dst) {
            return (done, Some(blocked));
        }
    }
    (10 * OVERTAKES, None)
}

#[test]
fn read_overtaken_sixteen_times_is_next() {
    let (queue, dst) = (MockQueue::new(), buffer(64));
    queue.write(&dst).unwrap();
    let mut read = pin!(dst.read_async());
    assert!(poll(&mut read).is_pending());
    let (times, blocked) = overtake(&queue, &dst);
    assert_eq!(times, OVERTAKES);
    let Some(TrySubmitError::WouldBlock(obstacle)) = blocked else { panic!("refused: {blocked:?}") };
    let mut obstacle = pin!(obstacle);
    assert!(poll(&mut obstacle).is_pending(), "the newcomer waits for what the reader waits for");
    // The reader saw only the first write; it goes on waiting, and stays first.
    queue.complete(1);
    assert!(poll(&mut read).is_pending());
    assert_eq!(overtake(&queue, &dst).0, 0);
    queue.complete(queue.count());
    let Poll::Ready(Ok(view)) = poll(&mut read) else { panic!("all is over that was before it") };
    drop(view);
    assert!(try_write(&queue, &dst).is_ok(), "its turn is over");
}

#[test]
fn list_of_many_ranges_overtakes_a_waiter_once() {
    const PIECES: usize = 2 * OVERTAKES;
    let (queue, src, dst) = (MockQueue::new(), buffer(PIECES), buffer(2 * PIECES));
    queue.write(&dst).unwrap();
    let mut read = pin!(dst.read_async());
    assert!(poll(&mut read).is_pending());
    let part = |of: &RawBuffer, at: usize| of.slice(at..at + 1).unwrap();
    let pairs: Vec<_> = (0..PIECES).map(|at| (part(&src, at), part(&dst, 2 * at))).collect();
    let list = Operation::CopyBatch { pairs: &pairs };
    let submit = || try_submit(&queue, &list, Timing::Off, &Turns::default());
    for list in 0..OVERTAKES {
        assert!(submit().is_ok(), "list {list}");
    }
    assert!(matches!(submit(), Err(TrySubmitError::WouldBlock(_))), "the reader is next");
    // Between its pieces nothing is overtaken.
    assert!(try_write(&queue, &part(&dst, 1)).is_err());
    queue.complete(queue.count());
    assert!(poll(&mut read).is_ready());
}

#[test]
fn list_around_what_a_waiter_waits_for_overtakes_nobody() {
    let (queue, src, dst) = (MockQueue::new(), buffer(64), buffer(128));
    let part = |of: &RawBuffer, at: usize| of.slice(at..at + 1).unwrap();
    let gap = part(&dst, 33);
    queue.write(&gap).unwrap();
    let mut read = pin!(gap.read_async());
    assert!(poll(&mut read).is_pending());
    let pairs: Vec<_> = (0..64).map(|at| (part(&src, at), part(&dst, 2 * at))).collect();
    for _ in 0..2 * OVERTAKES {
        try_submit(&queue, &Operation::CopyBatch { pairs: &pairs }, Timing::Off, &Turns::default()).unwrap();
    }
    assert_eq!(overtake(&queue, &gap).0, OVERTAKES);
}

#[test]
fn other_ranges_and_other_readers_do_not_queue() {
    let (queue, whole) = (MockQueue::new(), buffer(128));
    let (low, high) = (whole.slice(..64).unwrap(), whole.slice(64..).unwrap());
    queue.write(&low).unwrap();
    let mut read = pin!(low.read_async());
    assert!(poll(&mut read).is_pending());
    assert_eq!(overtake(&queue, &low).0, OVERTAKES);
    assert_eq!(overtake(&queue, &high).0, 10 * OVERTAKES);
    let copy = Operation::Copy { src: &low, dst: &buffer(64) };
    assert!(try_submit(&queue, &copy, Timing::Off, &Turns::default()).is_ok(), "a read beside a read");
}

#[test]
fn turn_ends_with_its_future() {
    let (queue, dst) = (MockQueue::new(), buffer(64));
    queue.write(&dst).unwrap();
    let mut read = Box::pin(dst.read_async());
    assert!(poll(&mut read.as_mut()).is_pending());
    let Some(TrySubmitError::WouldBlock(obstacle)) = overtake(&queue, &dst).1 else {
        panic!("it does not queue")
    };
    drop(read);
    assert!(try_write(&queue, &dst).is_ok());
    drop(obstacle);
}

#[test]
fn turn_ends_where_nobody_polls_within_a_millisecond() {
    let (queue, dst) = (MockQueue::new(), buffer(64));
    queue.write(&dst).unwrap();
    let mut read = pin!(dst.read_async());
    assert!(poll(&mut read).is_pending());
    assert_eq!(overtake(&queue, &dst).0, OVERTAKES);
    queue.complete(queue.count());
    // Awake, and never polled again: newcomers wait for it shortly, by threads and by tasks.
    let begun = Instant::now();
    pollster::block_on(submit_async(
        &queue,
        &Operation::Fill { dst: &dst, pattern: Pattern::U8(2) },
        Timing::Off,
    ))
    .unwrap();
    assert!(begun.elapsed() < LIMIT);
    assert!(try_write(&queue, &dst).is_ok());
    queue.complete(queue.count());
    assert!(poll(&mut read).is_ready(), "late, and in order all the same");
}

#[test]
fn submission_overtaken_sixteen_times_is_next() {
    let (theirs, ours, dst) = (MockQueue::new(), MockQueue::new(), buffer(64));
    ours.waits_for_own_only.store(true, Ordering::SeqCst);
    theirs.write(&dst).unwrap();
    let fill = Operation::Fill { dst: &dst, pattern: Pattern::U8(1) };
    let mut submitting = pin!(submit_async(&ours, &fill, Timing::Off));
    assert!(poll(&mut submitting).is_pending());
    assert_eq!(overtake(&theirs, &dst).0, OVERTAKES);
    theirs.complete(theirs.count());
    assert!(matches!(poll(&mut submitting), Poll::Ready(Ok(_))));
    assert!(try_write(&theirs, &dst).is_ok());
}

#[test]
fn task_that_waits_for_a_claim_is_next_after_sixteen() {
    let dst = buffer(64);
    let queue = MockQueue::new();
    let claim = || Claims::try_acquire(&mut [(&dst, Access::Read)], &Turns::default());
    let first = claim().unwrap();
    let mut write = pin!(dst.write_async());
    assert!(poll(&mut write).is_pending());
    for _ in 0..OVERTAKES {
        drop(claim().unwrap());
    }
    let blocked = claim();
    assert!(matches!(blocked, Err(TrySubmitError::WouldBlock(_))), "{blocked:?}");
    drop(first);
    assert!(matches!(poll(&mut write), Poll::Ready(Ok(_))));
    assert!(try_write(&queue, &dst).is_ok());
}

#[test]
fn caller_that_tries_again_is_next_after_sixteen() {
    let (theirs, ours, dst) = (MockQueue::new(), MockQueue::new(), buffer(64));
    ours.waits_for_own_only.store(true, Ordering::SeqCst);
    theirs.write(&dst).unwrap();
    let (turns, fill) = (Turns::default(), Operation::Fill { dst: &dst, pattern: Pattern::U8(1) });
    let again = || try_submit(&ours, &fill, Timing::Off, &turns);
    assert!(matches!(again(), Err(TrySubmitError::WouldBlock(_))));
    assert_eq!(overtake(&theirs, &dst).0, OVERTAKES);
    theirs.complete(theirs.count());
    assert!(again().is_ok());
    ours.complete(1);
    // And behind another thread's claim.
    let (first, turns) = (Claims::acquire(&mut [(&dst, Access::Read)]).unwrap(), Turns::default());
    assert!(Claims::try_acquire(&mut [(&dst, Access::Write)], &turns).is_err());
    for _ in 0..OVERTAKES {
        drop(Claims::acquire(&mut [(&dst, Access::Read)]).unwrap());
    }
    let newcomer = Claims::try_acquire(&mut [(&dst, Access::Read)], &Turns::default());
    assert!(matches!(newcomer, Err(TrySubmitError::WouldBlock(_))), "{newcomer:?}");
    drop(first);
    assert!(Claims::try_acquire(&mut [(&dst, Access::Write)], &turns).is_ok());
}

/// What the reader waits for ends only because the thread goes on that the reader would keep waiting.
#[test]
fn blocking_submission_waits_bounded_time_for_a_waiter() {
    let (queue, dst) = (Arc::new(MockQueue::new()), buffer(64));
    let (done, over) = mpsc::channel();
    let worker = thread::spawn(move || {
        queue.write(&dst).unwrap();
        let mut read = pin!(dst.read_async());
        assert!(poll(&mut read).is_pending());
        assert_eq!(overtake(&queue, &dst).0, OVERTAKES);
        // It goes ahead after a while, and with it as many as before.
        submit(&*queue, &Operation::Fill { dst: &dst, pattern: Pattern::U8(2) }, Timing::Off).unwrap();
        assert_eq!(overtake(&queue, &dst).0, OVERTAKES);
        queue.complete(queue.count());
        assert!(poll(&mut read).is_ready());
        done.send(()).unwrap();
    });
    over.recv_timeout(LIMIT).expect("it waits for ever");
    worker.join().unwrap();
}

/// As many writers as it takes, and a reader on a thread of its own.
#[test]
fn blocked_read_opens_beside_busy_writers() {
    let (queue, dst) = (Arc::new(MockQueue::new()), buffer(64));
    queue.write(&dst).unwrap();
    let (done, opened) = mpsc::channel();
    let reader = {
        let dst = dst.clone();
        thread::spawn(move || done.send(dst.read().map(drop)).unwrap())
    };
    let begun = Instant::now();
    // A write is always in flight: each ends only after the next was submitted, or had to wait.
    while opened.try_recv().is_err() {
        assert!(begun.elapsed() < LIMIT, "still not open after {} writes", queue.count());
        let next = try_write(&queue, &dst);
        let last = queue.count();
        queue.complete(if next.is_ok() { last - 1 } else { last });
        thread::yield_now();
    }
    reader.join().unwrap();
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the test");
    }
}

#[test]
fn panicking_waker_harms_neither_caller_nor_buffer() {
    let (queue, dst) = (MockQueue::new(), buffer(64));
    queue.write(&dst).unwrap();
    let mut read = pin!(dst.read_async());
    assert!(poll(&mut read).is_pending());
    assert_eq!(overtake(&queue, &dst).0, OVERTAKES);
    queue.complete(queue.count());
    // It waits for the reader's turn, which has no event of its own: its waker is called at once.
    let waker = Waker::from(Arc::new(Panics));
    let begun = Instant::now();
    while let Err(TrySubmitError::WouldBlock(obstacle)) = try_write(&queue, &dst) {
        let _either = pin!(obstacle).poll(&mut Context::from_waker(&waker));
        assert!(begun.elapsed() < LIMIT, "the turn does not end");
    }
    // And where a claim ends.
    queue.complete(queue.count());
    let claims = Claims::acquire(&mut [(&dst, Access::Write)]).unwrap();
    let mut late = pin!(dst.read_async());
    assert!(late.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(claims);
    assert!(matches!(poll(&mut late), Poll::Ready(Ok(_))));
}
