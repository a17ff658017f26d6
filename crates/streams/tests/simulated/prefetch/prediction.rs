//! Automatic prefetch on devices that are too small or too old.

use std::sync::Arc;

use transload_core::{MemoryKind, RawBuffer};
use transload_cuda_sim::SimDeviceBuilder;
use transload_cuda_sys::trace;
use transload_memory::{AutoPrefetcher, CudaDevice, CudaMemoryManager, PredictionLimits};
use transload_streams::CudaStream;

const CHUNK: usize = 1 << 16;

/// Declares a sweep over 16 chunks. Returns the prefetches that the driver got, and the number refused.
fn sweep(properties: impl FnOnce(SimDeviceBuilder) -> SimDeviceBuilder, taken: usize) -> (usize, u64) {
    transload_cuda_sim::install().unwrap();
    let sim = properties(transload_cuda_sim::SimDevice::builder()).build();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let x = memory.allocate(MemoryKind::Unified, 16 * CHUNK).unwrap();
    let taken: Option<RawBuffer> = (taken > 0).then(|| memory.allocate(MemoryKind::Device, taken).unwrap());
    let queue = Arc::new(CudaStream::new(&device).unwrap());
    let auto = AutoPrefetcher::new(&device, queue, PredictionLimits::default()).unwrap();
    let trace = trace::start();
    for index in 0..16 {
        auto.observe(&[&x.slice(index * CHUNK..(index + 1) * CHUNK).unwrap()]);
    }
    let calls = trace.calls_of_this_thread();
    let seen = calls.iter().filter(|call| call.name.starts_with("cuMemPrefetchAsync")).count();
    let refused = auto.statistics().refused;
    drop((x, taken, auto));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
    (seen, refused)
}

#[test]
fn device_without_page_migration_gets_no_prefetch() {
    assert_eq!(sweep(SimDeviceBuilder::pre_pascal, 0), (0, 0));
}

#[test]
fn a_full_device_gets_no_prefetch() {
    let small = |builder: SimDeviceBuilder| builder.total_memory(64 << 20);
    assert_eq!(sweep(small, 0), (13, 0));
    let (seen, refused) = sweep(small, 63 << 20);
    assert_eq!(seen, 0, "a 32nd is kept back");
    assert!(refused > 0);
}
