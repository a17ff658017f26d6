//! The limit on pinned host memory covers allocations, what is kept of them, and registrations.

use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{Backend, DeviceId, ErrorKind, MemoryKind};

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
    assert!(used() >= 4 * MIB as u64);
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
