//! Prefetch on a driver before CUDA 12.2, which has an older call.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

use transload_core::{ErrorKind, MemoryKind};
use transload_cuda_sim::{DriverOptions, Residency as Page, SimDevice, install_with};
use transload_memory::{
    CudaDevice, CudaMemoryManager, ManagedMemoryHints, MemoryLocation, PrefetchEntry, PrefetchPlan,
};
use transload_streams::CudaStream;

#[test]
fn older_driver_prefetches_but_refuses_numa_nodes() {
    let options =
        DriverOptions::default().version(12_010).missing("cuMemAdvise_v2").missing("cuMemPrefetchAsync_v2");
    install_with(options).unwrap();
    let sim = SimDevice::builder().build();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    buffer.write().unwrap().fill(9);
    let stream = CudaStream::new(&device).unwrap();
    let owned = ManagedMemoryHints::from_unified(&buffer).unwrap();
    let raw = ManagedMemoryHints::for_buffer(&device, owned.ptr(), owned.byte_size()).unwrap();
    let there = MemoryLocation::Device(sim.ordinal());
    let trace = transload_cuda_sys::trace::start();
    for hints in [&owned, &raw] {
        for (to, page) in [(there, Page::Device(sim.ordinal())), (MemoryLocation::Host, Page::Host)] {
            hints.prefetch_to(to, &stream).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(hints.residency().unwrap().last_prefetch, Some(to));
            assert_eq!(sim.residency(hints.ptr()), Some(page));
        }
        for node in [MemoryLocation::HostNuma(0), MemoryLocation::HostNumaCurrent] {
            assert_eq!(hints.prefetch_to(node, &stream).unwrap_err().kind(), ErrorKind::MissingFunction);
        }
        for ordinal in [10_000, u32::MAX, u32::MAX - 1] {
            let error = hints.prefetch_to(MemoryLocation::Device(ordinal), &stream).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnknownDevice, "{ordinal} is never the host: {error}");
        }
    }
    let mut plan = PrefetchPlan::new();
    plan.add_buffer(&buffer, sim.ordinal().cast_signed()).add_buffer(&buffer, PrefetchEntry::HOST);
    plan.execute(&stream).unwrap();
    assert_eq!(owned.residency().unwrap().last_prefetch, Some(MemoryLocation::Host));
    assert!(buffer.read().unwrap().iter().all(|byte| *byte == 9));
    assert!(trace.calls_of_this_thread().iter().all(|call| call.name != "cuMemPrefetchAsync_v2"));
    drop((owned, raw, plan, buffer, stream));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}
