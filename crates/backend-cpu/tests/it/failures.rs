//! A failed operation's fence keeps its error, and other operations go on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, ErrorKind, Fence, Operation, Pattern, QueueLease, Timing,
    host_access::{self, HostAccess},
    submit,
};

use crate::{allocate, backend, gate::Gate, lease};

/// Writes of this many bytes fail in this process: the hook of host accesses panics.
pub(crate) const REFUSED: usize = 4243;

/// The first write of each of these sizes is held until its test releases it: 0 before, 1 while held, 2 after.
const HELD: [usize; 3] = [4247, 4253, 4259];
static HOLDS: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

pub(crate) fn refuse() {
    host_access::set_hook(|_, bytes, access| {
        let held = HELD.iter().position(|held| access == HostAccess::Write && *held == bytes);
        if let Some(hold) = held.and_then(|index| HOLDS.get(index))
            && hold.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            while hold.load(Ordering::SeqCst) == 1 {
                thread::yield_now();
            }
        }
        let is_refused = bytes == REFUSED && access == HostAccess::Write;
        assert!(!is_refused, "a write of {REFUSED} bytes, refused on purpose");
    });
}

/// Submits a fill of `HELD[index]` bytes on another thread, where it is held.
pub(crate) fn hold(
    index: usize,
    backend: &Arc<CpuBackend>,
    queue: &Arc<QueueLease>,
) -> thread::JoinHandle<()> {
    refuse();
    let (buffer, queue) = (allocate(backend, HELD[index]), Arc::clone(queue));
    let submitter = thread::spawn(move || {
        let fill = Operation::Fill { dst: &buffer, pattern: Pattern::U8(1) };
        submit(&**queue, &fill, Timing::Off).unwrap();
    });
    while HOLDS[index].load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    submitter
}

/// Lets a fill held by [`hold`] go on.
pub(crate) fn let_go(index: usize) {
    HOLDS[index].store(2, Ordering::SeqCst);
}

/// Has another thread block in `wait`, releases the held operation, and checks that the thread is woken.
fn is_woken_after(index: usize, wait: impl FnOnce() + Send + 'static) {
    let ((tell, told), (begun, is_begun)) = (mpsc::channel(), mpsc::channel());
    let waiting = thread::spawn(move || {
        begun.send(()).unwrap();
        wait();
        tell.send(()).unwrap();
    });
    is_begun.recv().unwrap();
    // Time enough for one that does not wait to show itself, and for one that does to sleep.
    (0..10_000).take_while(|_| !waiting.is_finished()).for_each(|_| thread::yield_now());
    assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty), "it did not wait");
    let_go(index);
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(()), "it was not woken");
}

#[test]
fn drain_waits_for_inline_operation() {
    let backend = backend(1, usize::MAX);
    let queue = Arc::new(lease(&backend));
    let submitter = hold(0, &backend, &queue);
    is_woken_after(0, move || backend.drain().unwrap());
    submitter.join().unwrap();
}

#[test]
fn operation_queued_after_inline_one_runs() {
    let backend = backend(1, usize::MAX);
    let queue = Arc::new(lease(&backend));
    let submitter = hold(1, &backend, &queue);
    let buffer = allocate(&backend, 100);
    let fill = Operation::Fill { dst: &buffer, pattern: Pattern::U8(5) };
    let fence = submit(&**queue, &fill, Timing::Off).unwrap();
    is_woken_after(1, move || fence.wait().unwrap());
    submitter.join().unwrap();
    assert!(buffer.read().unwrap().iter().all(|byte| *byte == 5));
}

fn kinds(fences: &[Fence]) -> Vec<Option<ErrorKind>> {
    fences.iter().map(|fence| fence.wait().err().map(|error| error.kind())).collect()
}

#[test]
fn failures_outlive_any_number_of_later_ones() {
    refuse();
    let backend = backend(2, usize::MAX);
    let queue = lease(&backend);
    let (good, bad) = (allocate(&backend, 100), allocate(&backend, REFUSED));
    for blocked in [false, true] {
        let gate = Gate::new();
        if blocked {
            let fill = Operation::Fill { dst: &good, pattern: Pattern::U8(0) };
            submit(&gate, &fill, Timing::Off).unwrap();
        }
        // Alternate failures and successes, so that no two failures are adjacent.
        let fences: Vec<_> = (0..6000)
            .map(|index| {
                let dst = if index % 2 == 0 { &bad } else { &good };
                submit(&*queue, &Operation::Fill { dst, pattern: Pattern::U8(1) }, Timing::Off).unwrap()
            })
            .collect();
        gate.open();
        for (index, kind) in kinds(&fences).into_iter().enumerate() {
            let expected = (index % 2 == 0).then_some(ErrorKind::Interrupted);
            assert_eq!(kind, expected, "operation {index} of 6000, blocked: {blocked}");
        }
    }
    let error = backend.drain().unwrap_err();
    assert!(format!("{error:?}{error}").contains("refused on purpose"), "{error}");
    backend.drain().unwrap();
}

#[test]
fn failure_of_a_shared_operation_fails_no_other() {
    let backend = backend(3, 1 << 20);
    let queue = lease(&backend);
    refuse();
    let (bad, good) = (allocate(&backend, 8 << 20), allocate(&backend, 8 << 20));
    let short = allocate(&backend, REFUSED);
    let source = allocate(&backend, REFUSED);
    let pairs = [(bad.clone(), good.clone()), (source, short)];
    let batch = submit(&*queue, &Operation::CopyBatch { pairs: &pairs }, Timing::Off).unwrap();
    let after =
        submit(&*queue, &Operation::Fill { dst: &good, pattern: Pattern::U8(3) }, Timing::Off).unwrap();
    assert_eq!(batch.wait().unwrap_err().kind(), ErrorKind::Interrupted);
    after.wait().unwrap();
    assert!(good.read().unwrap().iter().all(|byte| *byte == 3));
}
