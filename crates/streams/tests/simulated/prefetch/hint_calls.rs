//! Driver calls of hints: target location and stream.

use std::sync::Arc;

use transload_core::MemoryKind;
use transload_cuda_sim::Residency as Page;
use transload_cuda_sys::trace;
use transload_memory::{
    AutoPrefetcher, CudaDevice, CudaMemoryManager, DeviceResidency, ManagedMemoryHints, MemoryLocation,
    PredictionLimits, Residency,
};
use transload_streams::CudaStream;

use crate::{builder, gate::Gate, within};

const BYTES: usize = 1 << 20;

#[test]
fn host_numa_current_is_passed_to_the_driver() {
    let sim = builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let stream = CudaStream::new(&device).unwrap();
    let buffer = memory.allocate(MemoryKind::Unified, BYTES).unwrap();
    let owned = ManagedMemoryHints::from_unified(&buffer).unwrap();
    let raw = ManagedMemoryHints::for_buffer(&device, owned.ptr(), BYTES).unwrap();
    for hints in [&owned, &raw] {
        for (place, told) in [
            (MemoryLocation::Device(sim.ordinal()), 1),
            (MemoryLocation::Host, 2),
            (MemoryLocation::HostNuma(0), 3),
            (MemoryLocation::HostNumaCurrent, 4),
        ] {
            let trace = trace::start();
            hints.prefetch_to(place, &stream).unwrap();
            let calls = trace.calls_of_this_thread();
            let call = calls.iter().find(|call| call.name == "cuMemPrefetchAsync_v2").unwrap();
            // The location's type and number are one argument.
            assert_eq!(call.arguments[2] >> 32, told, "{place}: {call:?}");
            stream.synchronize().unwrap();
        }
    }
    hints_stay_places(&owned);
    drop((owned, raw, buffer, stream));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

fn hints_stay_places(hints: &ManagedMemoryHints) {
    for place in [MemoryLocation::HostNuma(0), MemoryLocation::HostNumaCurrent] {
        assert!(place.is_host());
        hints.set_preferred_location(place).unwrap();
        let preferred = hints.residency().unwrap().preferred;
        assert!(preferred.is_some_and(MemoryLocation::is_host), "{preferred:?}");
    }
}

#[test]
fn address_prefetch_uses_the_given_default_stream() {
    within(|| {
        let [near, far] = [(); 2].map(|()| builder().build());
        let [here, there] = [near, far].map(|sim| CudaDevice::new(sim.ordinal()).unwrap());
        let memory = CudaMemoryManager::new(&here).unwrap();
        let [own, other] = [&here, &there].map(|device| CudaStream::legacy_default(device).unwrap());
        let buffer = memory.allocate(MemoryKind::Unified, BYTES).unwrap();
        let address = buffer.device_address().unwrap();
        let hints = ManagedMemoryHints::for_buffer(&here, address, BYTES).unwrap();
        let gate = Gate::before(&there, &[&other]);
        hints.prefetch_to(MemoryLocation::Device(far.ordinal()), &other).unwrap();
        own.synchronize().unwrap();
        assert_eq!(near.residency(address), Some(Page::Unpopulated), "the other stream is held");
        gate.open();
        other.synchronize().unwrap();
        assert_eq!(near.residency(address), Some(Page::Device(far.ordinal())));
        drop((hints, buffer, own, other));
        memory.drain().unwrap();
        drop((memory, here, there));
        assert!(near.live_objects().is_empty() && far.live_objects().is_empty());
    });
}

#[test]
fn prediction_without_room_is_not_taken_as_resident() {
    let sim = builder().total_memory(8 << 20).checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let buffer = memory.allocate(MemoryKind::Unified, BYTES).unwrap();
    let full = memory.allocate(MemoryKind::Device, (8 << 20) - (200 << 10)).unwrap();
    let queue = Arc::new(CudaStream::new(&device).unwrap());
    let residency = Arc::new(DeviceResidency::new(device.id()));
    let auto =
        AutoPrefetcher::with_residency(&device, queue, PredictionLimits::default(), Arc::clone(&residency))
            .unwrap();
    let chunk = |index: usize| buffer.slice(index * 131_072..(index + 1) * 131_072).unwrap();
    for index in 0..6 {
        let used = chunk(index);
        residency.mark_resident(&used);
        assert_eq!(auto.observe(&[&used]), 0, "the device is full");
    }
    assert!(auto.statistics().refused > 0, "{:?}", auto.statistics());
    assert!(!residency.mark_resident(&chunk(6)), "it was never brought");
    assert_eq!(Residency::of(&buffer).unwrap().last_prefetch, None);
    drop((auto, full, buffer));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}
