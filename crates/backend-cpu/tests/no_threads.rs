//! No device may wait for work that no thread can rescue. A program of its own, since the limit applies to the process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

#[path = "../../executor/tests/shared/no_threads.rs"]
mod no_threads;

use std::sync::mpsc;

use no_threads::NoThreads;
use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, MemoryKind, Operation, Pattern, StreamPriority, Timing, WorkloadType, submit,
};
use transload_executor::Executor;

/// More than runs in the submitting thread.
const BYTES: usize = 5 << 20;

#[test]
fn refused_spare_thread_keeps_devices_from_waiting() {
    let executor = Executor::with_threads(1).unwrap();
    let backend = CpuBackend::builder().executor(&executor).build().unwrap();
    let (begun, has_begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let blocked = executor.spawn(async move {
        begun.send(()).unwrap();
        let _until_dropped = released.recv();
    });
    has_begun.recv().unwrap();
    let dst = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, BYTES).unwrap();
    let queue = backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let fill = Operation::Fill { dst: &dst, pattern: Pattern::U8(1) };
    let filled = submit(&*queue, &fill, Timing::Off).unwrap();
    let ends_by_host_alone = || filled.timeline().ends_by_host_alone(filled.point());
    let none = NoThreads::new();
    assert!(!ends_by_host_alone());
    assert!(!ends_by_host_alone());
    drop(none);
    assert!(ends_by_host_alone());
    filled.wait().unwrap();
    drop(release);
    blocked.wait().unwrap();
}
