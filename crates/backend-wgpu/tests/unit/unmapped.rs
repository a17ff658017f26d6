//! Memory that the driver does not map.

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, StreamPriority, Timing, WorkloadType, submit,
};

use super::super::faults;
use crate::setup;

#[test]
fn refused_mapping_is_an_error_and_leaks_nothing() {
    let Some(backend) = setup::backend() else { return };
    let (host, state) = (CpuBackend::new().unwrap(), backend.states().remove(0));
    let (vulkan, id) = (&state.queue.vulkan, state.id());
    let queue = backend.lease_queue(id, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let refusing = |refuses| faults::refuse_maps(vulkan.raw.handle(), refuses);
    refusing(true);
    // A part of a block, and memory of its own.
    for bytes in [1000, 32 << 20] {
        let refused = backend.allocate(id, MemoryKind::Pinned, bytes).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Device, "{refused}");
        assert!(refused.to_string().contains("vkMapMemory"), "{refused}");
    }
    assert_eq!((backend.resource_counts().allocations, backend.resource_counts().bytes), (0, 0));
    refusing(false);
    let src = host.allocate(DeviceId::Cpu, MemoryKind::Pageable, 32 << 20).unwrap();
    src.write().unwrap().fill(7);
    let there = backend.allocate(id, MemoryKind::Device, 32 << 20).unwrap();
    let copy = || submit(&*queue, &Operation::Copy { src: &src, dst: &there }, Timing::Off);
    refusing(true);
    // It needs a staging buffer.
    assert_eq!(copy().unwrap_err().kind(), ErrorKind::Device);
    refusing(false);
    copy().unwrap().wait().unwrap();
    drop((src, there, queue));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}
