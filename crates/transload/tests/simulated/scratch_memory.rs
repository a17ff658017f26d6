//! Scratch memory of lists through device memory on a device that is full.

use transload::{
    DeviceId, MemoryKind,
    cuda::{CudaDevice, CudaStream},
};
use transload_cuda_sim::SimDevice;

use crate::{
    stream_gate::{Gate, limited},
    through_device::{COUNT, Lists, PIECE, manager},
};

/// To free memory there waits for all of the device's work.
#[test]
fn list_on_a_full_device_waits_for_none_that_is_held_up() {
    limited(|| {
        transload_cuda_sim::install().unwrap();
        let sim = SimDevice::builder().total_memory(64 << 20).build();
        let manager = manager(sim).unwrap();
        let [short, long] = [COUNT, 8 * COUNT]
            .map(|count| Lists::new(&manager, sim, MemoryKind::Pinned, (count, PIECE)).unwrap());
        let gpu = CudaDevice::new(sim.ordinal()).unwrap();
        let stream = CudaStream::new(&gpu).unwrap();
        let cuda = DeviceId::Cuda(sim.ordinal());
        let allocate = |kind| manager.allocate_for(cuda, kind, 64).unwrap();
        let small = [MemoryKind::Pinned, MemoryKind::Device].map(allocate);
        // Loads the kernel.
        manager.copy_many(&short.down).wait().unwrap();
        // Room for the short list's, and not for the long one's.
        let backend = manager.backend(cuda).unwrap();
        let mut rest = Vec::new();
        while backend.memory_info(cuda).unwrap().free > 10 << 20 {
            rest.push(manager.allocate_for(cuda, MemoryKind::Device, 1 << 20).unwrap());
        }
        let gate = Gate::before(&gpu, &[&stream]);
        let blocked = manager.copy(&small[0], &small[1]).on(&stream).submit();
        let held_up = manager.copy_many(&short.up).after(blocked.fence().unwrap()).submit();
        let report = manager.copy_many(&long.up).wait().unwrap();
        assert!(!report.groups[0].through_device, "{report:#}");
        gate.open();
        blocked.wait().unwrap();
        assert!(held_up.wait().unwrap().groups[0].through_device);
        drop(rest);
        for lists in [&short, &long] {
            manager.copy_many(&lists.down).wait().unwrap();
            assert!(lists.are_back().unwrap());
        }
    });
}
