//! An operation that follows another device's work is refused without a thread: it must not be over before that work. A program of its own, since
//! the limit applies to the process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

#[path = "it/gate.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod gate;
#[path = "../../executor/tests/shared/no_threads.rs"]
mod no_threads;

use gate::Gate;
use no_threads::NoThreads;
use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, Pattern, StreamPriority, Timing, WorkloadType,
    submit,
};
use transload_executor::Executor;

#[test]
fn refused_first_thread_ends_no_operation_before_what_it_follows() {
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
