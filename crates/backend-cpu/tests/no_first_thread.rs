//! An operation that follows another device's work is refused without a thread: it must not be over before that work. A program of its own, since
//! the limit applies to the process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

#[path = "it/gate.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod gate;
#[path = "../../executor/tests/shared/no_threads.rs"]
mod no_threads;

use std::{
    sync::{Arc, mpsc},
    task::{Wake, Waker},
};

use gate::Gate;
use no_threads::NoThreads;
use parking_lot::Mutex;
use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, ErrorKind, Fence, MemoryKind, Operation, Pattern, QueueLease, RawBuffer,
    StreamPriority, Timing, WorkloadType, submit,
};
use transload_executor::Executor;

/// One test at a time refuses threads.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn refused_first_thread_ends_no_operation_before_what_it_follows() {
    let _alone = ALONE.lock();
    let executor = Executor::with_threads(1).unwrap();
    let backend = CpuBackend::builder().executor(&executor).build().unwrap();
    let dst = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 4096).unwrap();
    let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let gate = Gate::new();
    let fill = |value| Operation::Fill { dst: &dst, pattern: Pattern::U8(value) };
    drop(submit(&gate, &fill(1), Timing::Off).unwrap());
    let none = NoThreads::new();
    let refused = submit(&*queue, &fill(2), Timing::Off).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
    assert_eq!(dst.try_write().unwrap_err().kind(), ErrorKind::Busy, "the device writes it");
    drop(none);
    let filled = submit(&*queue, &fill(2), Timing::Off).unwrap();
    gate.open();
    filled.wait().unwrap();
    assert!(dst.read().unwrap().iter().all(|byte| *byte == 2));
}

/// Permits threads again, and submits a fill.
struct FillsLater {
    none: Mutex<Option<NoThreads>>,
    queue: Arc<QueueLease>,
    dst: RawBuffer,
    filled: Mutex<mpsc::Sender<Fence>>,
}

impl Wake for FillsLater {
    fn wake(self: Arc<Self>) {
        drop(self.none.lock().take());
        let fill = Operation::Fill { dst: &self.dst, pattern: Pattern::U8(2) };
        self.filled.lock().send(submit(&**self.queue, &fill, Timing::Off).unwrap()).unwrap();
    }
}

#[test]
fn operation_behind_one_without_a_thread_comes_after_what_it_follows() {
    let _alone = ALONE.lock();
    let executor = Executor::with_threads(1).unwrap();
    let backend = CpuBackend::builder().executor(&executor).build().unwrap();
    let allocate = |bytes| backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
    // The first is more than runs in the submitting thread.
    let (refused, dst) = (allocate(5 << 20), allocate(4096));
    let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let (queue, gate) = (Arc::new(queue), Gate::new());
    submit(&gate, &Operation::Fill { dst: &dst, pattern: Pattern::U8(1) }, Timing::Off).unwrap();
    let (filled, is_filled) = mpsc::channel();
    let later = Arc::new(FillsLater {
        none: Mutex::new(Some(NoThreads::new())),
        queue: Arc::clone(&queue),
        dst: dst.clone(),
        filled: Mutex::new(filled),
    });
    assert!(!queue.timeline().wake_at(1, &Waker::from(later)));
    let fill = Operation::Fill { dst: &refused, pattern: Pattern::U8(1) };
    let given_up = submit(&**queue, &fill, Timing::Off).unwrap();
    let filled = is_filled.recv().unwrap();
    assert!(given_up.is_complete() && !filled.is_complete());
    assert!(dst.is_in_use(), "the device writes it");
    gate.open();
    filled.wait().unwrap();
    assert!(dst.read().unwrap().iter().all(|byte| *byte == 2));
    assert_eq!(given_up.wait().unwrap_err().kind(), ErrorKind::Interrupted);
    backend.drain().unwrap_err();
}
