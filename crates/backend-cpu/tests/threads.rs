//! A backend's threads: started by the first operation that needs one, bounded, named, and ended after the last use.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, MemoryKind, Operation, Pattern, StreamPriority, Timing, WorkloadType, submit,
};

/// Names of the process's threads that are not the test's.
fn named() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("transload-")).collect()
}

#[test]
fn threads_start_on_demand_and_end_after_last_lease() {
    const WORKERS: usize = 3;
    let backend = CpuBackend::builder().workers(WORKERS).parallel_from(1 << 20).build().unwrap();
    let buffer = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 8 << 20).unwrap();
    let lease = || backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let fill = |queue: &dyn transload_core::Queue, bytes: usize| {
        let dst = buffer.slice(..bytes).unwrap();
        submit(queue, &Operation::Fill { dst: &dst, pattern: Pattern::U8(1) }, Timing::Off).unwrap()
    };
    let queues: Vec<_> = (0..8).map(|_| lease()).collect();
    fill(&*queues[0], 4096).wait().unwrap();
    assert_eq!(named(), Vec::<String>::new(), "a short operation is done by its submitter");
    for _ in 0..20 {
        let fences: Vec<_> = queues.iter().map(|queue| fill(&**queue, buffer.len())).collect();
        let threads = named();
        // A spare thread for each queue may do what the workers did not begin for 20 ms.
        assert!(threads.len() <= WORKERS + queues.len(), "{threads:?}");
        fences.iter().for_each(|fence| fence.wait().unwrap());
        assert!(!named().is_empty(), "a thread that worked has its name");
    }
    // Leased queues outlive the backend's handle, and keep the threads.
    drop(backend);
    fill(&*queues[0], buffer.len()).wait().unwrap();
    assert!(!named().is_empty());
    drop(queues);
    // It keeps the fence of its last use.
    drop(buffer);
    let begun = Instant::now();
    while !named().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(30), "left: {:?}", named());
        thread::yield_now();
    }
}
