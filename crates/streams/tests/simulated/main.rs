//! Streams on a driver that fails, is slow, or checks for races, which only the software driver simulates.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod allocator;
mod batches;
mod call_counts;
mod capture;
mod contexts;
mod coordinator;
mod downloads;
mod event_clock;
mod fills;
#[path = "../it/support/gate.rs"]
#[allow(dead_code, reason = "shared with the tests of one device")]
mod gate;
mod graph_kernels;
mod graphs;
mod in_place;
mod launch;
mod many_copies;
mod partial_copies;
mod pool;
mod prefetch;
mod profiling;
mod registration_dropped;
#[path = "../it/support/shifted.rs"]
mod shifted;
mod unified;

use transload_core::{ErrorKind, MemoryKind, Pattern};
use transload_cuda_sim::{SimDevice, harness};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;

const UNKNOWN: u32 = 999;
const ILLEGAL_ADDRESS: u32 = 700;

/// Runs a test that could hang; it fails after two minutes.
fn within(test: impl FnOnce() + Send + 'static) {
    gate::within(std::time::Duration::from_secs(120), test);
}

fn builder() -> transload_cuda_sim::SimDeviceBuilder {
    transload_cuda_sim::install().unwrap();
    SimDevice::builder()
}

/// Runs a scenario once per driver call, with that call failing: expects a typed error, no race, no leak and no hang.
fn with_each_call_failing(scenario: impl Fn(&CudaDevice, &CudaMemoryManager) -> transload_core::Result<()>) {
    let _alone = alone_with_drop_errors();
    let runs = harness::fail_each_call(
        |builder| builder,
        &[UNKNOWN],
        &[ErrorKind::Device],
        |sim| {
            let device = CudaDevice::new(sim.ordinal())?;
            let memory = CudaMemoryManager::new(&device)?;
            let outcome = scenario(&device, &memory);
            // Memory that an error left is freed by another thread; draining waits for that.
            let drained = memory.drain();
            outcome.and(drained)
        },
    );
    assert!(runs > 20, "the scenario makes calls");
}

#[test]
fn copy_is_not_visible_before_it_completes() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let (there, back) = (
        memory.allocate(MemoryKind::Device, 100).unwrap(),
        memory.allocate(MemoryKind::Pinned, 100).unwrap(),
    );
    back.write().unwrap().fill(1);
    // Queues enough that one query does not find it complete.
    for _ in 0..20 {
        drop(stream.memset_async(&there, Pattern::U8(2)));
    }
    let down = stream.copy_to_host_async(&there, &back);
    assert_eq!(back.try_read().unwrap_err().kind(), ErrorKind::Busy);
    assert!(back.write().unwrap().iter().all(|byte| *byte == 2), "a view waits for the copy");
    down.wait().unwrap();
}

#[test]
fn conflicting_work_has_no_race_under_a_hundred_seeds() {
    for seed in 0..100 {
        let sim = builder().seed(seed).record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let streams: Vec<_> = (0..3).map(|_| CudaStream::new(&device).unwrap()).collect();
        let buffers: Vec<_> = (0..3).map(|_| memory.allocate(MemoryKind::Device, 600_000).unwrap()).collect();
        let host = memory.allocate(MemoryKind::Pinned, 600_000).unwrap();
        host.write().unwrap().fill(9);
        for (index, buffer) in buffers.iter().enumerate() {
            drop(streams[index].copy_from_host_async(&host, buffer));
        }
        drop(streams[1].copy_device_to_device_async(&buffers[0], &buffers[1]));
        drop(streams[2].copy_device_to_device_async(&buffers[1], &buffers[2]));
        drop(streams[0].memset_async(&buffers[0], Pattern::U8(1)));
        let down = streams[0].copy_to_host_async(&buffers[2], &host);
        assert!(host.read().unwrap().iter().all(|byte| *byte == 9), "seed {seed}");
        down.wait().unwrap();
        let races = sim.races();
        assert!(races.is_empty(), "seed {seed}: {}", races[0]);
    }
}

#[test]
fn missing_wait_is_found_as_a_race() {
    let sim = builder().record_accesses(true).build();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let (one, two) = (CudaStream::new(&device).unwrap(), CudaStream::new(&device).unwrap());
    let (a, b) =
        (memory.allocate(MemoryKind::Device, 64).unwrap(), memory.allocate(MemoryKind::Device, 64).unwrap());
    let address = |buffer: &transload_core::RawBuffer| buffer.device_address().unwrap();
    // SAFETY: the ranges are valid; that the second copy may read half of the first is the injected fault.
    unsafe {
        one.copy_raw_async(address(&a), address(&b), 64).unwrap();
        two.copy_raw_async(address(&b), address(&a), 64).unwrap();
    }
    one.synchronize().unwrap();
    two.synchronize().unwrap();
    assert!(!sim.races().is_empty(), "the checker must see copies that nothing orders");
}

/// Drop errors are recorded per process: tests that take them run one at a time.
fn alone_with_drop_errors() -> std::sync::MutexGuard<'static, ()> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let _others = transload_cuda_sys::take_drop_errors();
    guard
}

fn copy_up_and_down(memory: &CudaMemoryManager, device: &CudaDevice) -> transload_core::Result<()> {
    let (one, two) = (CudaStream::new(device)?, CudaStream::new(device)?);
    let (host, there) =
        (memory.allocate(MemoryKind::Pinned, 5000)?, memory.allocate(MemoryKind::Device, 5000)?);
    host.write()?.fill(1);
    let up = one.copy_from_host_async(&host, &there);
    let down = two.copy_to_host_async(&there, &host);
    let (up, down) = (up.wait(), pollster::block_on(down));
    up?;
    down.map(|_| ())
}

#[test]
fn each_failing_call_of_copies_is_a_typed_error() {
    with_each_call_failing(|device, memory| copy_up_and_down(memory, device));
}

#[test]
fn lost_device_fails_all_work_and_frees_memory() {
    let sim = builder().build();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let there = memory.allocate(MemoryKind::Device, 100).unwrap();
    let in_flight = stream.memset_async(&there, Pattern::U8(1));
    sim.poison(ILLEGAL_ADDRESS);
    assert_eq!(in_flight.wait().unwrap_err().kind(), ErrorKind::DeviceLost);
    let after = stream.memset_async(&there, Pattern::U8(2));
    assert_eq!(after.wait().unwrap_err().kind(), ErrorKind::DeviceLost);
    drop(there);
    assert_eq!(
        memory.resource_counts().pending_free,
        0,
        "nothing runs on a lost device, so nothing is waited for"
    );
}

#[test]
fn implied_wait_is_not_enqueued_again() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let (writer, reader) = (CudaStream::new(&device).unwrap(), CudaStream::new(&device).unwrap());
    let there = memory.allocate(MemoryKind::Device, 64).unwrap();
    let (left, right) = (there.slice(..32).unwrap(), there.slice(32..).unwrap());
    let targets: Vec<_> = (0..2).map(|_| memory.allocate(MemoryKind::Device, 32).unwrap()).collect();
    drop(writer.memset_async(&left, Pattern::U8(1)));
    drop(writer.memset_async(&right, Pattern::U8(1)));
    let trace = transload_cuda_sys::trace::start();
    drop(reader.copy_device_to_device_async(&right, &targets[0]));
    drop(reader.copy_device_to_device_async(&left, &targets[1]));
    let waits = trace.calls_of_this_thread().iter().filter(|call| call.name == "cuStreamWaitEvent").count();
    assert_eq!(waits, 1, "the wait for the second fill implies the first");
    reader.synchronize().unwrap();
}
