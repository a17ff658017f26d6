//! A transfer runs by itself and reports its end once.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Instant,
};

use parking_lot::Mutex;
use transload_core::{
    CompletionHandler, Error, ErrorKind, Fence, MemoryKind, Place, Reclaimer, RefusalHandler, Result,
    Submission, Submitted, Transfer, TransferId, TransferMethod, TransferPath, TransferReport,
};

use crate::mock::{DEVICE, MockQueue, buffer, memory};

/// Writes down what it is told.
#[derive(Default)]
struct Diary(Mutex<Vec<String>>);

impl CompletionHandler for Diary {
    fn report(&self, submission: &Submission) -> TransferReport {
        let place = Place::new(DEVICE, MemoryKind::Pageable);
        let path = TransferPath::new(place, place);
        TransferReport::planned(path, TransferMethod::DirectCopy, DEVICE, submission.bytes)
    }

    fn ended(&self, _: &Submission, report: &TransferReport, outcome: Result<(), &Error>) {
        let outcome = outcome.map_or_else(ToString::to_string, |()| "ok".to_owned());
        self.0.lock().push(format!("ended {} {outcome}", report.bytes));
    }

    fn abandoned(&self, submission: &Submission, fence: Fence) {
        self.0.lock().push(format!("abandoned {} at {}", submission.bytes, fence.point()));
    }
}

impl RefusalHandler for Diary {
    fn refusal_dropped(&self, _: Option<TransferId>, error: &Error) {
        self.0.lock().push(format!("refusal {error}"));
    }
}

impl Diary {
    fn of_refusals(&self) -> usize {
        self.read().iter().filter(|line| line.starts_with("refusal")).count()
    }

    fn read(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

fn transfer(fence: Fence, diary: &Arc<Diary>) -> Transfer {
    let submission = Submission { bytes: 100, begun: Some(Instant::now()), ..Submission::default() };
    Transfer::submitted(Submitted::Until(fence), submission, diary.clone())
}

fn started(queue: &MockQueue) -> (Transfer, Arc<Diary>) {
    let diary = Arc::new(Diary::default());
    let fence = queue.copy(&buffer(100), &buffer(100)).unwrap();
    (transfer(fence, &diary), diary)
}

#[test]
fn refused_transfer_returns_its_error_by_any_call() {
    let refused = || Transfer::refused(Error::new(ErrorKind::Unsupported, "no way"));
    assert_eq!(refused().refusal().unwrap().kind(), ErrorKind::Unsupported);
    assert!(refused().fence().is_none() && refused().is_complete());
    assert_eq!(refused().wait().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(pollster::block_on(refused()).unwrap_err().to_string(), "no way");
}

#[test]
fn awaited_transfer_reports_its_duration() {
    let queue = MockQueue::new();
    let (transfer, diary) = started(&queue);
    assert!(!transfer.is_complete() && transfer.refusal().is_none());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| pollster::block_on(transfer));
        queue.complete(1);
        let report = waiting.join().unwrap().unwrap();
        assert_eq!((report.bytes, report.moving), (100, None));
        assert!(!report.elapsed.unwrap().is_zero());
    });
    assert_eq!(diary.read(), ["ended 100 ok"]);
}

#[test]
fn a_transfer_is_waited_for_without_a_runtime() {
    let queue = MockQueue::new();
    let (transfer, diary) = started(&queue);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| transfer.wait());
        queue.complete(1);
        assert!(waiting.join().unwrap().is_ok());
    });
    assert_eq!(diary.read(), ["ended 100 ok"]);
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn transfer_poll_is_woken_once_and_repoll_is_an_error() {
    let queue = MockQueue::new();
    let (transfer, diary) = started(&queue);
    let mut transfer = pin!(transfer);
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(Arc::clone(&flag));
    let mut context = Context::from_waker(&waker);
    assert!(transfer.as_mut().poll(&mut context).is_pending());
    assert!(!flag.0.load(Ordering::SeqCst));
    queue.complete(1);
    assert!(flag.0.load(Ordering::SeqCst));
    assert!(matches!(transfer.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    for _ in 0..2 {
        let Poll::Ready(Err(error)) = transfer.as_mut().poll(&mut context) else { panic!("not an error") };
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    assert!(transfer.fence().is_none() && transfer.is_complete());
    assert_eq!(diary.read(), ["ended 100 ok"]);
}

#[test]
fn operation_error_reaches_await_and_wait() {
    let queue = MockQueue::new();
    let (awaited, awaited_diary) = started(&queue);
    let (waited, waited_diary) = started(&queue);
    queue.fail(1, "link down");
    queue.fail(2, "link still down");
    assert!(awaited.is_complete());
    assert_eq!(pollster::block_on(awaited).unwrap_err().to_string(), "link down");
    assert_eq!(waited.wait().unwrap_err().to_string(), "link still down");
    assert_eq!(awaited_diary.read(), ["ended 100 link down"]);
    assert_eq!(waited_diary.read(), ["ended 100 link still down"]);
}

#[test]
fn dropped_transfer_reports_once_and_keeps_memory_alive() {
    let queue = MockQueue::new();
    let reclaimer = Arc::new(Reclaimer::new());
    let (dst, freed) = memory(&reclaimer, MemoryKind::Pageable, 100, true);
    let diary = Arc::new(Diary::default());
    let fence = queue.copy(&buffer(100), &dst).unwrap();
    let transfer = transfer(fence, &diary);
    drop(dst);
    drop(transfer);
    assert_eq!(diary.read(), ["abandoned 100 at 1"]);
    reclaimer.sweep();
    assert!(!freed.load(Ordering::SeqCst));
    queue.complete(1);
    reclaimer.sweep();
    assert!(freed.load(Ordering::SeqCst));
    assert_eq!(diary.read().len(), 1);
}

#[test]
fn dropped_refusal_reports_once_taken_one_never() {
    let diary = Arc::new(Diary::default());
    let refused =
        || Transfer::refused_with(Error::new(ErrorKind::Unsupported, "no way"), None, diary.clone());
    assert_eq!(refused().wait().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(pollster::block_on(refused()).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(diary.of_refusals(), 0);
    drop(refused());
    assert_eq!(diary.read(), ["refusal no way"]);
}

#[test]
fn two_transfers_run_whatever_the_order_of_the_awaits() {
    let queue = MockQueue::new();
    let ((first, _), (second, _)) = (started(&queue), started(&queue));
    assert_eq!(queue.count(), 2, "both are under way before any is awaited");
    queue.complete(2);
    assert!(second.wait().is_ok());
    assert!(first.wait().is_ok());
}
