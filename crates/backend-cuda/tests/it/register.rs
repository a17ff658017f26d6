//! Pageable host memory registered through the backend: pinned for queues, and released by `drain`.

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, StreamPriority, Timing, WorkloadType, submit,
};

use crate::backend;

#[test]
fn registered_memory_is_not_staged_and_drain_releases_it() {
    let (test, cuda) = backend();
    let cpu = CpuBackend::new().unwrap();
    let device = DeviceId::Cuda(test.ordinal());
    let content: Vec<u8> = (0..5_000_000_u32).map(|index| (index % 251) as u8).collect();
    let source = cpu.wrap_vec(content.clone());
    let pinned = cuda.register(&source).unwrap();
    assert_eq!((pinned.place().kind, pinned.place().device), (MemoryKind::Pinned, DeviceId::Cpu));
    let queue = cuda.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let there = cuda.allocate(device, MemoryKind::Device, pinned.len()).unwrap();
    let back = cuda.allocate(device, MemoryKind::Pinned, pinned.len()).unwrap();
    submit(&*queue, &Operation::Copy { src: &pinned, dst: &there }, Timing::Off).unwrap();
    drop(pinned);
    submit(&*queue, &Operation::Copy { src: &there, dst: &back }, Timing::Off).unwrap();
    assert!(*back.read().unwrap() == content[..]);
    // Comes behind the upload.
    source.write().unwrap().fill(0);
    assert_eq!(cuda.registrations().unwrap().statistics().registrations, 1);
    drop((source, queue, there, back));
    assert_eq!(cpu.resource_counts().allocations, 1, "the registration keeps it");
    cuda.drain().unwrap();
    cpu.drain().unwrap();
    assert!(
        cuda.resource_counts().is_empty() && cpu.resource_counts().is_empty(),
        "{} {}",
        cuda.resource_counts(),
        cpu.resource_counts()
    );
    drop(cuda);
    test.assert_no_live_objects();
}

#[test]
fn registrations_stay_within_configured_limit() {
    let test = transload_cuda_sim::harness::device().end_check();
    let config = transload_backend_cuda::CudaBackendConfig::default()
        .with_devices([test.ordinal()])
        .with_registration_limit(1 << 20);
    let cuda = transload_backend_cuda::CudaBackend::open(&config).unwrap();
    let cpu = CpuBackend::new().unwrap();
    let buffer = cpu.wrap_vec(vec![0_u8; 2 << 20]);
    let error = cuda.register(&buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert_eq!(error.memory_shortage().unwrap().total, Some(1 << 20));
    drop(cuda.register(&buffer.slice(..1 << 19).unwrap()).unwrap());
    drop(buffer);
    cuda.drain().unwrap();
    assert!(cpu.resource_counts().is_empty());
}
