//! The backend's allocator: uses device memory, is counted and drained by the backend, and releases memory when it is
//! short.

use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{Backend, DeviceId, ErrorKind, MemoryKind, Operation, Pattern, Timing, submit};
use transload_cuda_sim::harness;
use transload_memory::CudaDevice;
use transload_streams::CudaStream;

#[test]
fn allocator_buffer_is_counted_and_drained() {
    let test = harness::device().end_check();
    let backend = CudaBackend::open(&CudaBackendConfig::default().with_devices([test.ordinal()])).unwrap();
    let stream = CudaStream::new(backend.device(test.ordinal()).unwrap()).unwrap();
    let allocator = backend.allocator(test.ordinal()).unwrap();
    let there = allocator.allocate_buffer(&stream, 5000).unwrap();
    let back = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 5000);
    assert_eq!(back.unwrap_err().kind(), ErrorKind::UnknownDevice, "the host's memory is another backend's");
    let back = backend.allocate(DeviceId::Cuda(test.ordinal()), MemoryKind::Pinned, 5000).unwrap();
    submit(&stream, &Operation::Fill { dst: &there, pattern: Pattern::U8(7) }, Timing::Off).unwrap();
    submit(&stream, &Operation::Copy { src: &there, dst: &back }, Timing::Off).unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 7));
    assert!(backend.resource_counts().bytes > 5000, "a segment: {}", backend.resource_counts());
    drop((there, back));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
    assert_eq!(backend.allocator(u32::MAX).unwrap_err().kind(), ErrorKind::UnknownDevice);
    drop((stream, backend));
    test.assert_no_live_objects();
}

#[test]
fn allocator_releases_cache_when_device_is_full() {
    let test = harness::device().end_check();
    let backend = CudaBackend::open(&CudaBackendConfig::default().with_devices([test.ordinal()])).unwrap();
    let id = DeviceId::Cuda(test.ordinal());
    let stream = CudaStream::new(&CudaDevice::new(test.ordinal()).unwrap()).unwrap();
    let allocator = backend.allocator(test.ordinal()).unwrap();
    // More than half of the free memory, so that as much again fits only after this was released.
    let free = usize::try_from(backend.memory_info(id).unwrap().free).unwrap();
    let block = allocator.allocate_for_stream(&stream, free / 8 * 5).unwrap();
    allocator.free_on(block, &stream).unwrap();
    assert!(backend.resource_counts().bytes >= (free / 8 * 5) as u64, "kept for the next request");
    let large = backend.allocate(id, MemoryKind::Device, free / 8 * 5).unwrap();
    drop((large, stream));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
    drop(backend);
    test.assert_no_live_objects();
}
