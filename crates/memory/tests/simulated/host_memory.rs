//! Pinned memory if the driver is out of memory, and what resources report and release.

use std::sync::Arc;

use transload_core::{MemoryKind, RawBuffer};
use transload_cuda_sim::SimDevice;
use transload_memory::{
    CudaDevice, CudaMemoryManager, CudaResource, HostPages, MemoryResource, PinnedResource, RegistrationCache,
};

use crate::{builder, heap::heap};

const MIB: usize = 1 << 20;

fn manager(sim: SimDevice) -> Arc<CudaMemoryManager> {
    Arc::new(CudaMemoryManager::new(&CudaDevice::new(sim.ordinal()).unwrap()).unwrap())
}

fn ordinary(memory: &Arc<CudaMemoryManager>) -> PinnedResource {
    PinnedResource::new(memory).with_pages(HostPages::Ordinary)
}

#[cfg(target_os = "linux")]
#[test]
fn unregistrable_pages_are_retried_once_then_out_of_memory() {
    use transload_core::ErrorKind;

    use crate::OUT_OF_MEMORY;

    let sim = builder().build();
    let memory = manager(sim);
    sim.fail_call(Some("cuMemHostRegister_v2"), 1, OUT_OF_MEMORY);
    let segment = ordinary(&memory).allocate_segment(5000).unwrap();
    assert!(segment.write().is_ok(), "what was kept back was given back, and then there was room");
    drop(segment);
    sim.fail_call(Some("cuMemHostRegister_v2"), 1, OUT_OF_MEMORY);
    sim.fail_call(Some("cuMemHostRegister_v2"), 2, OUT_OF_MEMORY);
    let error = ordinary(&memory).allocate_segment(5000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let shortage = error.memory_shortage().unwrap();
    assert_eq!(shortage.requested, 5000);
    assert!(shortage.free.unwrap() <= shortage.total.unwrap());
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    drop(memory);
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

#[test]
fn memory_is_registered_for_every_device() {
    const PORTABLE: u32 = 1;
    let memory = manager(builder().build());
    let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
    let flags_of = |pinned: &RawBuffer| {
        let _bound = memory.device().context().unwrap().enter().unwrap();
        let (mut flags, start) = (0, pinned.host_address().unwrap().as_ptr());
        // SAFETY: the out pointer is valid.
        let code = unsafe { transload_cuda_sys::ffi::cuMemHostGetFlags(&mut flags, start.cast()) };
        transload_cuda_sys::check("cuMemHostGetFlags", code).unwrap();
        flags
    };
    let (buffer, _) = heap(65_536, true);
    assert_eq!(flags_of(&cache.register(&buffer).unwrap()) & PORTABLE, PORTABLE);
    if cfg!(target_os = "linux") {
        assert_eq!(flags_of(&ordinary(&memory).allocate_segment(5000).unwrap()) & PORTABLE, PORTABLE);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn info_describes_the_resources_memory() {
    let memory = manager(builder().total_memory(8 * MIB).build());
    let total = |kind| CudaResource::new(&memory, kind).unwrap().info().unwrap().total;
    let of_device = 8 * MIB as u64;
    assert_eq!((total(MemoryKind::Device), total(MemoryKind::Unified)), (of_device, of_device));
    let of_host = PinnedResource::new(&memory).info().unwrap().total;
    assert!(of_host > of_device, "no host that runs this has so little");
    assert_eq!((total(MemoryKind::Pinned), total(MemoryKind::Mapped)), (of_host, of_host));
}

#[test]
fn trim_releases_cached_memory_to_the_driver() {
    let sim = builder().total_memory(8 * MIB).build();
    let memory = manager(sim);
    let resource = CudaResource::new(&memory, MemoryKind::Device).unwrap();
    drop(resource.allocate_segment(5 * MIB).unwrap());
    let free = || memory.device().context().unwrap().memory_info().unwrap().0;
    assert!(free() <= 3 * MIB, "the pool keeps it for the next one");
    resource.trim().unwrap();
    assert!(free() >= 7 * MIB);
    let unified = CudaResource::new(&memory, MemoryKind::Unified).unwrap();
    drop(resource.allocate_segment(5 * MIB).unwrap());
    unified.trim().unwrap();
    assert!(free() >= 7 * MIB, "it is one memory");
}
