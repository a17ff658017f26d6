//! Hints on a driver before CUDA 12.2, which identifies locations by one number and knows no NUMA nodes.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail their tests")]

use transload_core::{DeviceId, ErrorKind, MemoryAdvice, MemoryKind};
use transload_cuda_sim::{DriverOptions, SimDevice, install_with};
use transload_memory::{
    CudaDevice, CudaMemoryManager, ManagedMemoryHints, MemoryLocation, MigrationPolicy, Residency, advise,
};

fn older() -> (SimDevice, CudaMemoryManager) {
    static INSTALLED: std::sync::Once = std::sync::Once::new();
    INSTALLED.call_once(|| {
        let options = DriverOptions::default()
            .version(12_010)
            .missing("cuMemAdvise_v2")
            .missing("cuMemPrefetchAsync_v2");
        install_with(options).unwrap();
    });
    let sim = SimDevice::builder().build();
    (sim, CudaMemoryManager::new(&CudaDevice::new(sim.ordinal()).unwrap()).unwrap())
}

#[test]
fn older_driver_sets_and_removes_each_advice() {
    let (sim, memory) = older();
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    let (here, there) = (DeviceId::Cuda(sim.ordinal()), MemoryLocation::Device(sim.ordinal()));
    let trace = transload_cuda_sys::trace::start();
    advise(&buffer, MemoryAdvice::SetReadMostly).unwrap();
    for (at, location) in [(here, there), (DeviceId::Cpu, MemoryLocation::Host)] {
        advise(&buffer, MemoryAdvice::SetPreferredLocation(at)).unwrap();
        advise(&buffer, MemoryAdvice::SetAccessedBy(at)).unwrap();
        let believed = Residency::of(&buffer).unwrap();
        assert!(believed.read_mostly);
        assert_eq!((believed.preferred, &*believed.accessed_by), (Some(location), &[location][..]));
        advise(&buffer, MemoryAdvice::UnsetAccessedBy(at)).unwrap();
        advise(&buffer, MemoryAdvice::UnsetPreferredLocation).unwrap();
    }
    advise(&buffer, MemoryAdvice::UnsetReadMostly).unwrap();
    assert_eq!(Residency::of(&buffer).unwrap(), Residency::default());
    let calls = trace.calls_of_this_thread();
    assert!(calls.iter().any(|call| call.name == "cuMemAdvise"));
    assert!(calls.iter().all(|call| !call.name.ends_with("_v2") || call.name.starts_with("cuCtx")));
    drop(buffer);
    memory.drain().unwrap();
    drop(memory);
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

#[test]
fn older_driver_refuses_an_unknown_device() {
    let (_sim, memory) = older();
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    for ordinal in [10_000, u32::MAX, u32::MAX - 1] {
        let error = advise(&buffer, MemoryAdvice::SetPreferredLocation(DeviceId::Cuda(ordinal))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownDevice, "{error}");
    }
    assert_eq!(Residency::of(&buffer).unwrap(), Residency::default());
}

#[test]
fn numa_node_needs_a_newer_driver() {
    let (_sim, memory) = older();
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    let hints = ManagedMemoryHints::from_unified(&buffer).unwrap();
    for node in [MemoryLocation::HostNuma(0), MemoryLocation::HostNumaCurrent] {
        let error = hints.set_preferred_location(node).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MissingFunction);
        assert!(error.to_string().contains("12.2 or newer; valid on this one are cpu and cuda:N"), "{error}");
    }
    hints.set_preferred_location(MemoryLocation::Host).unwrap();
    hints.apply_policy(MigrationPolicy::Reset).unwrap();
    assert_eq!(hints.residency().unwrap(), Residency::default());
}
