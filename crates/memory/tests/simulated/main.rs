//! The memory manager on devices that only the simulated driver has.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod adopt;
mod features;
#[path = "../../../core/tests/shared/gate.rs"]
mod gate;
#[path = "../it/heap.rs"]
#[allow(dead_code, reason = "shared with the tests of any driver")]
mod heap;
mod hints;
mod host_memory;
mod kept;
mod registration_ends;
mod resources;

use transload_core::{ErrorKind, MemoryKind};
use transload_cuda_sim::{SimDevice, harness};
use transload_memory::{CudaDevice, CudaMemoryManager};

const OUT_OF_MEMORY: u32 = 2;
const ILLEGAL_ADDRESS: u32 = 700;

fn manager(sim: SimDevice) -> CudaMemoryManager {
    CudaMemoryManager::new(&CudaDevice::new(sim.ordinal()).unwrap()).unwrap()
}

fn builder() -> transload_cuda_sim::SimDeviceBuilder {
    transload_cuda_sim::install().unwrap();
    SimDevice::builder()
}

/// Drop errors are per process, so a test that checks them runs alone.
fn alone_with_drop_errors() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    drop(transload_cuda_sys::take_drop_errors());
    alone
}

#[test]
fn without_pools_memory_is_freed_off_the_callers_thread() {
    let sim = builder().memory_pools(false).build();
    let memory = manager(sim);
    let trace = transload_cuda_sys::trace::start();
    drop(memory.allocate(MemoryKind::Device, 1000).unwrap());
    let mine: Vec<_> = trace.calls_of_this_thread().iter().map(|call| call.name).collect();
    assert!(mine.contains(&"cuMemAlloc_v2"), "{mine:?}");
    assert!(
        !mine.contains(&"cuMemFree_v2"),
        "freeing waits for the device, so the caller must not: {mine:?}"
    );
    memory.drain().unwrap();
    drop(memory);
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

#[test]
fn device_without_managed_memory_names_its_kinds() {
    let memory = manager(builder().managed_memory(false).build());
    let error = memory.allocate(MemoryKind::Unified, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("valid are pinned, mapped, device"), "{error}");
}

#[test]
fn unified_memory_without_concurrent_access_has_no_host_address() {
    let memory = manager(builder().pre_pascal().build());
    let buffer = memory.allocate(MemoryKind::Unified, 100).unwrap();
    assert_eq!(buffer.write().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn unified_memory_above_free_is_refused_without_a_driver_call() {
    let sim = builder().total_memory(1 << 20).build();
    let memory = manager(sim);
    let error = memory.allocate(MemoryKind::Unified, 2 << 20).unwrap_err();
    assert_eq!(error.memory_shortage().unwrap().free, Some(1 << 20));
    assert_eq!(sim.live_objects().managed, 0);
}

#[test]
fn cached_pool_memory_is_released_before_out_of_memory() {
    let memory = manager(builder().total_memory(8 << 20).build());
    let whole = memory.allocate(MemoryKind::Device, 7 << 20).unwrap();
    assert_eq!(memory.allocate(MemoryKind::Device, 7 << 20).unwrap_err().kind(), ErrorKind::OutOfMemory);
    drop(whole);
    // Without a drain: the pool still caches what was freed, and the request needs almost all memory.
    let unified = memory.allocate(MemoryKind::Unified, 6 << 20).unwrap();
    drop(unified);
    memory.drain().unwrap();
    memory.allocate(MemoryKind::Device, 7 << 20).unwrap();
}

#[test]
fn each_failing_driver_call_is_a_typed_error_and_nothing_leaks() {
    let _alone = alone_with_drop_errors();
    let kinds = [ErrorKind::OutOfMemory, ErrorKind::Device];
    harness::fail_each_call(
        |builder| builder,
        &[OUT_OF_MEMORY],
        &kinds,
        |sim| {
            let memory = CudaMemoryManager::new(&CudaDevice::new(sim.ordinal())?)?;
            let kinds = [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Unified];
            let outcome = kinds.iter().try_for_each(|kind| memory.allocate(*kind, 5000).map(drop));
            // Memory left by an error is freed by another thread; draining waits for it.
            let drained = memory.drain();
            outcome.and(drained)
        },
    );
}

#[test]
fn a_lost_device_is_reported_as_lost() {
    let sim = builder().build();
    let memory = manager(sim);
    let buffer = memory.allocate(MemoryKind::Pinned, 100).unwrap();
    sim.poison(ILLEGAL_ADDRESS);
    let error = memory.allocate(MemoryKind::Device, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeviceLost);
    drop(buffer);
    let _reported = memory.drain();
}

#[test]
fn failed_free_stays_counted_and_is_reported() {
    let _alone = alone_with_drop_errors();
    let sim = builder().build();
    let memory = manager(sim);
    sim.fail_call(Some("cuMemFreeHost"), 1, OUT_OF_MEMORY);
    drop(memory.allocate(MemoryKind::Pinned, 5000).unwrap());
    memory.drain().unwrap();
    assert_eq!((memory.resource_counts().allocations, sim.live_objects().pinned), (1, 1));
    let told = transload_cuda_sys::take_drop_errors();
    assert!(told.iter().any(|error| error.code() == Some(OUT_OF_MEMORY)), "{told:?}");
}
