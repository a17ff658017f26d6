//! The end of work is awaited, waited for, polled and timed.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use transload_core::{
    ErrorKind, Fence, Operation, Pattern, Queue, RawBuffer, Timing, Transfer, TransferMethod, submit,
};

use crate::{allocate, backend, gate::Gate, lease, noise};

fn transfer(queue: &dyn Queue, src: &RawBuffer, dst: &RawBuffer) -> Transfer {
    match submit(queue, &Operation::Copy { src, dst }, Timing::Measured) {
        Ok(fence) => Transfer::direct(fence, TransferMethod::DirectCopy, src.place(), dst.place(), src.len()),
        Err(error) => Transfer::refused(error),
    }
}

#[test]
fn a_transfer_is_awaited_without_a_runtime() {
    let backend = backend(2, usize::MAX);
    let queue = lease(&backend);
    for bytes in [10, 70_000, 3_000_000] {
        let (src, dst) = (backend.wrap_vec(noise(1, bytes)), allocate(&backend, bytes));
        let begun = Instant::now();
        let report = pollster::block_on(transfer(&*queue, &src, &dst)).unwrap();
        assert!(report.moving.unwrap() <= begun.elapsed());
        assert!(*dst.try_read().unwrap() == *src.try_read().unwrap());
    }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn waker_is_woken_once_after_many_polls() {
    let backend = backend(1, usize::MAX);
    let gate = Gate::new();
    let (src, dst) = (allocate(&backend, 100), allocate(&backend, 100));
    let queue = lease(&backend);
    submit(&gate, &Operation::Fill { dst: &src, pattern: Pattern::U8(1) }, Timing::Off).unwrap();
    let mut transfer = pin!(transfer(&*queue, &src, &dst));
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    for _ in 0..100 {
        assert!(transfer.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
    gate.open();
    while count.0.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    assert!(matches!(transfer.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    transload_core::Backend::drain(&*backend).unwrap();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
}

struct Rude;

impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics, on purpose");
    }
}

#[test]
fn panicking_waker_stops_neither_worker_nor_queue() {
    let backend = backend(1, usize::MAX);
    let gate = Gate::new();
    let buffer = allocate(&backend, 100);
    let queue = lease(&backend);
    let fill = Operation::Fill { dst: &buffer, pattern: Pattern::U8(1) };
    submit(&gate, &fill, Timing::Off).unwrap();
    let fence = submit(&*queue, &fill, Timing::Off).unwrap();
    assert!(!fence.timeline().wake_at(fence.point(), &Waker::from(Arc::new(Rude))));
    gate.open();
    fence.wait().unwrap();
    let large = allocate(&backend, 1 << 20);
    let fill = Operation::Fill { dst: &large, pattern: Pattern::U8(1) };
    submit(&*queue, &fill, Timing::Off).unwrap().wait().unwrap();
}

#[test]
fn duration_is_kept_until_taken_if_measured() {
    let backend = backend(1, usize::MAX);
    let queue = lease(&backend);
    let buffer = allocate(&backend, 8 << 20);
    let fill = Operation::Fill { dst: &buffer, pattern: Pattern::U8(1) };
    let measured = submit(&*queue, &fill, Timing::Measured).unwrap();
    let silent = submit(&*queue, &fill, Timing::Off).unwrap();
    silent.wait().unwrap();
    let timeline = queue.timeline();
    assert!(timeline.take_duration(measured.point()).unwrap().unwrap() > Duration::ZERO);
    assert_eq!(timeline.take_duration(measured.point()).unwrap(), None);
    assert_eq!(timeline.take_duration(silent.point()).unwrap(), None);
}

#[test]
fn untaken_durations_are_bounded() {
    let backend = backend(1, usize::MAX);
    let queue = lease(&backend);
    let buffer = allocate(&backend, 8);
    let fill = Operation::Fill { dst: &buffer, pattern: Pattern::U8(1) };
    let fences: Vec<_> = (0..5000).map(|_| submit(&*queue, &fill, Timing::Measured).unwrap()).collect();
    let taken = |fence: &Fence| queue.timeline().take_duration(fence.point()).unwrap().is_some();
    assert_eq!(fences.iter().filter(|fence| taken(fence)).count(), 1024);
}

#[test]
fn wait_for_point_not_enqueued_is_an_error() {
    let backend = backend(1, usize::MAX);
    let queue = lease(&backend);
    assert_eq!(queue.timeline().wait(7).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(!queue.timeline().poll(7).unwrap());
}
