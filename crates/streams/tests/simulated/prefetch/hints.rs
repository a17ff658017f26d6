//! Hints on several architectures and on a failing driver.

use transload_core::{DeviceId, ErrorKind, MemoryAdvice, MemoryKind, Result};
use transload_cuda_sim::{Residency as Page, SimDeviceBuilder};
use transload_memory::{
    CudaDevice, CudaMemoryManager, ManagedMemoryHints, MemoryLocation, MigrationPolicy, PrefetchEntry,
    PrefetchPlan, advise,
};
use transload_streams::CudaStream;

use crate::{UNKNOWN, builder, with_each_call_failing};

type Make = fn(SimDeviceBuilder) -> SimDeviceBuilder;

/// Without concurrent managed access: before Pascal, and any device under Windows.
const NOT_AT_ONCE: [Make; 2] = [SimDeviceBuilder::pre_pascal, |builder| {
    builder.compute_capability(8, 6).concurrent_managed_access(false)
}];

/// Pascal, Volta, Ampere, Hopper on Linux.
const AT_ONCE: [Make; 4] = [
    |builder| builder.compute_capability(6, 0),
    |builder| builder.compute_capability(7, 0),
    |builder| builder.compute_capability(8, 0),
    |builder| builder.compute_capability(9, 0),
];

#[test]
fn architectures_with_concurrent_access_take_hints() {
    for make in AT_ONCE {
        let sim = make(builder()).build();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        let hints = ManagedMemoryHints::from_unified(&buffer).unwrap();
        hints.apply_policy(MigrationPolicy::PreferDevice(sim.ordinal())).unwrap();
        hints.prefetch_range(0, 1 << 19, None, &stream).unwrap();
        stream.synchronize().unwrap();
        let address = hints.ptr();
        assert_eq!(sim.residency(address), Some(Page::Device(sim.ordinal())));
        assert_eq!(sim.residency(address + (1 << 19)), Some(Page::Unpopulated), "only the range moved");
        drop((hints, buffer, stream));
        memory.drain().unwrap();
        drop((memory, device));
        assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
    }
}

#[test]
fn prefetch_without_an_event_leaves_the_bytes_readable() {
    for to in [MemoryLocation::HostNuma(0), MemoryLocation::Host] {
        let sim = builder().build();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        let hints = ManagedMemoryHints::from_unified(&buffer).unwrap();
        sim.fail_call(Some("cuEventRecord"), 1, UNKNOWN);
        let failed = hints.prefetch_to(to, &stream).unwrap_err();
        assert!(failed.is_partial(), "{failed}");
        drop(buffer.read().unwrap());
    }
}

#[test]
fn architectures_without_concurrent_access_refuse_hints() {
    let able = builder().build();
    for make in NOT_AT_ONCE {
        let sim = make(builder()).build();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        let owned = ManagedMemoryHints::from_unified(&buffer).unwrap();
        let raw = ManagedMemoryHints::for_buffer(&device, owned.ptr(), owned.byte_size()).unwrap();
        let here = MemoryLocation::Device(sim.ordinal());
        for hints in [&owned, &raw] {
            let refusals = [
                hints.set_preferred_location(here),
                hints.set_accessed_by(here),
                hints.apply_policy(MigrationPolicy::PreferDevice(sim.ordinal())),
                hints.prefetch_to(None, &stream),
                hints.prefetch_to(MemoryLocation::Host, &stream),
                hints.prefetch_to(MemoryLocation::Device(able.ordinal()), &stream),
                hints.prefetch_range(0, 1, here, &stream),
            ];
            for (n, refusal) in refusals.into_iter().enumerate() {
                let error = refusal.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{n}: {error}");
            }
            hints.apply_policy(MigrationPolicy::Reset).unwrap();
        }
        let mut plan = PrefetchPlan::new();
        plan.add_buffer(&buffer, sim.ordinal().cast_signed());
        assert_eq!(plan.execute(&stream).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(sim.residency(owned.ptr()), Some(Page::Unpopulated));
        drop((owned, raw, plan, buffer, stream));
        memory.drain().unwrap();
        drop((memory, device));
        assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
    }
}

#[test]
fn each_failing_call_of_hints_is_a_typed_error() {
    fn scenario(device: &CudaDevice, memory: &CudaMemoryManager) -> Result<()> {
        let buffer = memory.allocate(MemoryKind::Unified, 1 << 20)?;
        let stream = CudaStream::new(device)?;
        advise(&buffer, MemoryAdvice::SetReadMostly)?;
        advise(&buffer, MemoryAdvice::SetAccessedBy(DeviceId::Cpu))?;
        let hints = ManagedMemoryHints::from_unified(&buffer)?;
        hints.prefetch_to(None, &stream)?;
        ManagedMemoryHints::for_buffer(device, hints.ptr(), 4096)?
            .prefetch_to(MemoryLocation::Host, &stream)?;
        let mut plan = PrefetchPlan::new();
        plan.add_buffer(&buffer.slice(..4096)?, PrefetchEntry::HOST);
        plan.add_buffer(&buffer.slice(8192..)?, PrefetchEntry::HOST);
        plan.execute(&stream)?;
        hints.residency()?;
        buffer.wait_idle()
    }
    with_each_call_failing(scenario);
}

#[test]
fn merged_neighbours_that_fail_are_retried_one_by_one() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let buffer = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let ordinal = sim.ordinal().cast_signed();
    let base = buffer.device_address().unwrap();
    let half = 1 << 19;
    let mut plan = PrefetchPlan::new();
    plan.add(PrefetchEntry { ptr: base, byte_size: half, device_ordinal: ordinal }).add(PrefetchEntry {
        ptr: base + half as u64,
        byte_size: half,
        device_ordinal: ordinal,
    });
    sim.fail_call(Some("cuMemPrefetchAsync_v2"), 1, 1);
    plan.execute(&stream).unwrap();
    stream.synchronize().unwrap();
    for at in [base, base + half as u64] {
        assert_eq!(sim.residency(at), Some(Page::Device(sim.ordinal())));
    }
    // Refused when merged, then the second alone fails.
    sim.fail_call(Some("cuMemPrefetchAsync_v2"), 1, UNKNOWN);
    sim.fail_call(Some("cuMemPrefetchAsync_v2"), 3, UNKNOWN);
    let error = plan.execute(&stream).unwrap_err();
    assert!(error.to_string().starts_with("entry 1 of the plan"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Device);
    drop((plan, buffer, stream));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}
