//! The limit on pinned host memory covers allocations, what is kept of them, and registrations.

use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, StreamPriority, Timing, WorkloadType, submit,
};
use transload_memory::CudaMemoryManager;

const MIB: usize = 1 << 20;

#[test]
fn pinned_memory_stays_within_the_limit() {
    let test = transload_cuda_sim::harness::device().end_check();
    let config =
        CudaBackendConfig::default().with_devices([test.ordinal()]).with_pinned_limit(8 * MIB as u64);
    let (cuda, cpu) = (CudaBackend::open(&config).unwrap(), CpuBackend::new().unwrap());
    let allocate = |kind, bytes| cuda.allocate(DeviceId::Cuda(test.ordinal()), kind, bytes);
    let used = || cuda.pinned().bytes();

    let (pinned, mapped) = (allocate(MemoryKind::Pinned, 4 * MIB), allocate(MemoryKind::Mapped, 4 * MIB));
    let (pinned, mapped) = (pinned.unwrap(), mapped.unwrap());
    assert_eq!(used(), 8 * MIB as u64);
    for kind in [MemoryKind::Pinned, MemoryKind::Mapped] {
        let error = allocate(kind, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(error.memory_shortage().unwrap().total, Some(8 * MIB as u64));
    }
    let ordinary = cpu.wrap_vec(vec![7_u8; 4 * MIB]);
    assert_eq!(cuda.register(&ordinary).unwrap_err().kind(), ErrorKind::OutOfMemory);
    // Other kinds are not limited.
    drop(allocate(MemoryKind::Device, 16 * MIB).unwrap());

    // What is only kept counts, and makes room for what is needed.
    drop((pinned, mapped));
    let kept = used();
    assert!(kept >= 4 * MIB as u64);
    // Nothing is given up for what cannot fit.
    let error = allocate(MemoryKind::Pinned, 9 * MIB).unwrap_err();
    assert_eq!((error.kind(), used()), (ErrorKind::OutOfMemory, kept));
    let mapped = allocate(MemoryKind::Mapped, 4 * MIB).unwrap();
    let registered = cuda.register(&ordinary).unwrap();
    assert_eq!((used(), allocate(MemoryKind::Pinned, MIB).is_err()), (8 * MIB as u64, true));
    drop((registered, mapped));
    let all = allocate(MemoryKind::Pinned, 8 * MIB).unwrap();
    assert_eq!(used(), 8 * MIB as u64);

    drop((all, ordinary));
    cuda.drain().unwrap();
    assert_eq!(used(), 0);
    assert!(cuda.resource_counts().is_empty() && cpu.resource_counts().is_empty());
}

#[test]
fn lists_of_batches_give_way() {
    let test = transload_cuda_sim::harness::device().end_check();
    let config =
        CudaBackendConfig::default().with_devices([test.ordinal()]).with_pinned_limit(8 * MIB as u64);
    let (cuda, cpu) = (CudaBackend::open(&config).unwrap(), CpuBackend::new().unwrap());
    // A manager of the user's, without a limit.
    drop(CudaMemoryManager::new(cuda.device(test.ordinal()).unwrap()).unwrap());
    let device = DeviceId::Cuda(test.ordinal());
    let used = || cuda.pinned().bytes();
    let mapped = cuda.allocate(device, MemoryKind::Mapped, 4 * MIB).unwrap();
    let there = cuda.allocate(device, MemoryKind::Device, 4 * MIB).unwrap();
    let pairs = [(mapped.clone(), there.clone())];
    let batch = || {
        let queue = cuda.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        let operation = Operation::CopyBatchInPlace { pairs: &pairs };
        submit(&*queue, &operation, Timing::Off).unwrap().wait().unwrap();
        assert!(used() > 4 * MIB as u64, "the list is kept");
    };

    // To a registration, to an allocation, and at a drain.
    batch();
    let ordinary = cpu.wrap_vec(vec![7_u8; 4 * MIB]);
    drop(cuda.register(&ordinary).unwrap());
    cuda.drain().unwrap();
    batch();
    drop(cuda.allocate(device, MemoryKind::Pinned, 4 * MIB).unwrap());
    cuda.drain().unwrap();
    batch();
    cuda.drain().unwrap();
    assert_eq!(used(), 4 * MIB as u64);

    drop((pairs, mapped, there, ordinary));
    cuda.drain().unwrap();
    assert_eq!(used(), 0);
    assert!(cuda.resource_counts().is_empty() && cpu.resource_counts().is_empty());
}

#[test]
fn registration_beyond_its_own_limit_takes_nothing_from_others() {
    let test = transload_cuda_sim::harness::device().end_check();
    let config =
        CudaBackendConfig::default().with_devices([test.ordinal()]).with_registration_limit(MIB as u64);
    let (cuda, cpu) = (CudaBackend::open(&config).unwrap(), CpuBackend::new().unwrap());
    drop(cuda.allocate(DeviceId::Cuda(test.ordinal()), MemoryKind::Pinned, 4 * MIB).unwrap());
    let ordinary = cpu.wrap_vec(vec![0_u8; 4 * MIB]);
    drop(cuda.register(&ordinary.slice(..MIB / 2).unwrap()).unwrap());
    let kept = cuda.cached_pinned_bytes();
    let refused = cuda.register(&ordinary.slice(MIB..3 * MIB).unwrap()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
    assert_eq!((kept > 0, cuda.cached_pinned_bytes()), (true, kept));
    assert_eq!(cuda.registrations().unwrap().statistics().registrations, 1);
    drop(ordinary);
    cuda.drain().unwrap();
}
