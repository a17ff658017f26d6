//! Invalid requests are refused with a kind, and a text that says what would be valid.

use transload_backend_cpu::{CpuBackend, CpuBuffer};
use transload_core::{
    Backend, Buffer, DeviceId, Error, ErrorKind, MemoryKind, Operation, Pattern, Pitched, Place, Pod, Result,
    Retry, StreamPriority, Timing, TransferMethod, WorkloadType, submit,
};

use crate::{allocate, backend, lease};

fn refused<T>(result: Result<T>) -> Error {
    result.map(|_| ()).unwrap_err()
}

#[test]
fn bad_allocations_are_refused_each_with_its_kind() {
    let backend = backend(1, usize::MAX);
    let allocate = |device, kind, bytes| refused(backend.allocate(device, kind, bytes));
    let unknown = allocate(DeviceId::Cuda(3), MemoryKind::Pageable, 1);
    assert_eq!(unknown.kind(), ErrorKind::UnknownDevice);
    assert!(unknown.to_string().contains("cuda:3"));
    for kind in MemoryKind::ALL.into_iter().filter(|kind| *kind != MemoryKind::Pageable) {
        let error = allocate(DeviceId::Cpu, kind, 1);
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("pageable memory only"), "{error}");
    }
    assert_eq!(allocate(DeviceId::Cpu, MemoryKind::Pageable, 0).kind(), ErrorKind::InvalidArgument);
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 60, 1 << 45] {
        let error = allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes);
        assert_eq!((error.kind(), error.retry()), (ErrorKind::OutOfMemory, Retry::AfterFreeing));
        let shortage = error.memory_shortage().unwrap();
        assert_eq!(shortage.requested, bytes as u64);
        #[cfg(any(target_os = "linux", windows))]
        assert!(shortage.free.unwrap() <= shortage.total.unwrap());
        assert!(error.to_string().contains(&bytes.to_string()), "{error}");
    }
    assert!(backend.resource_counts().is_empty());
}

#[test]
fn typed_buffer_refuses_bad_length_or_alignment() {
    #[derive(Clone, Copy)]
    #[repr(align(128))]
    struct Wide(#[allow(dead_code)] [u8; 128]);
    // SAFETY: plain bytes, all zero valid.
    unsafe impl bytemuck::Zeroable for Wide {}
    // SAFETY: as large as its alignment, without padding.
    unsafe impl Pod for Wide {}

    let backend = backend(1, usize::MAX);
    assert_eq!(refused(CpuBuffer::<u64>::new(&backend, usize::MAX)).kind(), ErrorKind::OutOfRange);
    assert_eq!(refused(CpuBuffer::<u64>::new(&backend, 0)).kind(), ErrorKind::InvalidArgument);
    assert_eq!(refused(CpuBuffer::<()>::new(&backend, 1)).kind(), ErrorKind::InvalidArgument);
    assert_eq!(refused(CpuBuffer::<Wide>::new(&backend, 1)).kind(), ErrorKind::InvalidArgument);
    let raw = allocate(&backend, 65);
    assert_eq!(refused(CpuBuffer::<u64>::from_raw(raw.clone())).kind(), ErrorKind::InvalidArgument);
    let shifted = raw.slice(1..).unwrap();
    assert_eq!(refused(CpuBuffer::<u64>::from_raw(shifted)).kind(), ErrorKind::InvalidArgument);
    let four = CpuBuffer::from_slice(&backend, &[1_u16, 2, 3, 4]).unwrap();
    assert_eq!(refused(four.copy_from_host(&[1; 5])).kind(), ErrorKind::OutOfRange);
    assert_eq!(refused(four.copy_to_host(&mut [0; 5])).kind(), ErrorKind::OutOfRange);
}

#[test]
fn bad_operations_are_refused_and_leave_no_trace() {
    let backend = backend(1, usize::MAX);
    let queue = lease(&backend);
    let (a, b) = (allocate(&backend, 100), allocate(&backend, 99));
    let sealed = backend.wrap_readonly(vec![0; 100]);
    let kind = |operation: &Operation<'_>| refused(submit(&*queue, operation, Timing::Off)).kind();
    let rows = Pitched::new(50, 2, 50, 50);
    assert_eq!(kind(&Operation::Copy { src: &a, dst: &b }), ErrorKind::InvalidArgument);
    assert_eq!(kind(&Operation::Copy { src: &a, dst: &a }), ErrorKind::Overlap);
    assert_eq!(kind(&Operation::Copy { src: &a, dst: &sealed }), ErrorKind::InvalidArgument);
    assert_eq!(kind(&Operation::CopyPitched { src: &a, dst: &b, rows }), ErrorKind::OutOfRange);
    assert_eq!(kind(&Operation::Fill { dst: &b, pattern: Pattern::U16(1) }), ErrorKind::InvalidArgument);
    assert_eq!(kind(&Operation::Prefetch { buffer: &a, to: DeviceId::Cpu }), ErrorKind::Unsupported);
    assert!(a.try_write().is_ok() && b.try_write().is_ok());
}

#[test]
fn other_devices_and_invalid_settings_are_refused() {
    let backend = backend(1, usize::MAX);
    let lease = backend.lease_queue(DeviceId::Wgpu(0), StreamPriority::High, WorkloadType::Mixed);
    assert_eq!(refused(lease).kind(), ErrorKind::UnknownDevice);
    assert_eq!(refused(backend.memory_info(DeviceId::Metal(0))).kind(), ErrorKind::UnknownDevice);
    assert_eq!(refused(backend.register(&allocate(&backend, 1))).kind(), ErrorKind::Unsupported);
    for workers in [0, 1025, usize::MAX] {
        let error = refused(CpuBackend::builder().workers(workers).build());
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("1 to 1024"));
    }
}

#[test]
fn the_backend_describes_the_host() {
    let backend = backend(1, usize::MAX);
    let [info]: [_; 1] = backend.devices().try_into().unwrap();
    assert_eq!(
        (info.id, &info.kinds[..], info.simulated),
        (DeviceId::Cpu, &[MemoryKind::Pageable][..], false)
    );
    #[cfg(any(target_os = "linux", windows))]
    assert_eq!(info.total_memory, Some(backend.memory_info(DeviceId::Cpu).unwrap().total));
    let host = |kind| Place::new(DeviceId::Cpu, kind);
    assert_eq!(backend.copier(host(MemoryKind::Mapped), host(MemoryKind::Pinned)), Some(DeviceId::Cpu));
    assert_eq!(
        backend.copier(host(MemoryKind::Pageable), Place::new(DeviceId::Cuda(0), MemoryKind::Device)),
        None
    );
    let costs = backend.default_costs();
    assert_eq!(costs.len(), 9);
    assert!(costs.iter().all(|cost| cost.method == TransferMethod::DirectCopy));
    let shared = backend.share(&allocate(&backend, 5), DeviceId::Cpu).unwrap();
    assert!(!shared.copied);
}
