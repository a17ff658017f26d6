//! What the CUDA backend promises, on the software driver and on a real one (`TRANSLOAD_TEST_DRIVER=real`).
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod advice;
mod allocator;
mod buffer_cache;
mod conformance;
mod lanes;
mod pinned_limit;
mod profiling;
mod register;
mod serving;
mod unified;

use std::{fmt::Debug, sync::Arc};

use transload_backend_cuda::{CudaBackend, CudaBackendConfig, CudaDevice, CudaFeature};
use transload_core::{
    Backend, Buffer, DeviceId, ErrorKind, MemoryKind, Operation, Place, Pod, StreamPriority, Timing,
    WorkloadType, conformance::typed_buffer, submit,
};
use transload_cuda_sim::harness::{self, EndCheck};

fn backend() -> (EndCheck, Arc<CudaBackend>) {
    let test = harness::device().end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = pollster::block_on(CudaBackend::initialize(config)).unwrap();
    (test, backend)
}

#[test]
fn a_device_presents_itself() {
    let (test, backend) = backend();
    let devices = backend.devices();
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].id, DeviceId::Cuda(test.ordinal()));
    assert_eq!(devices[0].simulated, test.is_simulated());
    assert_eq!(devices[0].name.contains("Simulated"), test.is_simulated(), "{}", devices[0].name);
    assert!(devices[0].uuid.is_some());
    let memory = backend.memory_info(devices[0].id).unwrap();
    assert!(memory.free <= memory.total && devices[0].total_memory >= Some(memory.total));
    assert!(backend.supports_feature(CudaFeature::UnifiedAddressing).unwrap());
}

#[test]
fn listing_devices_makes_no_context() {
    let (_test, _backend) = {
        let trace = transload_cuda_sys::trace::start();
        let made = backend();
        let calls = trace.calls_of_this_thread();
        assert!(!calls.is_empty());
        assert!(calls.iter().all(|call| call.name != "cuDevicePrimaryCtxRetain"), "a context takes 200 ms");
        made
    };
}

fn fills_and_copies<T: Pod + PartialEq + Debug>(buffer: &dyn Buffer<T>, a: T, b: T) {
    typed_buffer(buffer, a, b).unwrap();
}

#[test]
fn typed_buffers_of_any_element_fill_and_copy() {
    let (test, backend) = backend();
    let ordinal = test.ordinal();
    fills_and_copies(&backend.create_buffer::<u8>(ordinal, 1001).unwrap(), 7, 9);
    fills_and_copies(&backend.create_buffer::<u16>(ordinal, 333).unwrap(), 0x1234, 1);
    fills_and_copies(&backend.create_buffer::<f32>(ordinal, 1000).unwrap(), 1.5, -0.0);
    fills_and_copies(&backend.create_buffer::<u64>(ordinal, 77).unwrap(), u64::MAX - 5, 3);
    fills_and_copies(&backend.create_buffer::<[f32; 768]>(ordinal, 13).unwrap(), [0.25; 768], [2.0; 768]);
    let counted: [f32; 768] = std::array::from_fn(|index| index as f32);
    fills_and_copies(&backend.create_buffer::<[f32; 768]>(ordinal, 131).unwrap(), counted, [2.0; 768]);
    fills_and_copies(
        &backend.create_buffer::<[f32; 4]>(ordinal, 1001).unwrap(),
        [1.0, 2.0, 3.0, 4.0],
        [0.5; 4],
    );
    fills_and_copies(&backend.create_buffer::<u128>(ordinal, 17).unwrap(), u128::MAX / 3 + 1, 3);
    fills_and_copies(&backend.create_buffer::<[f32; 3]>(ordinal, 1001).unwrap(), [1.0, 2.0, 3.0], [0.5; 3]);
    fills_and_copies(&backend.create_buffer::<[u8; 3]>(ordinal, 3).unwrap(), [1, 2, 3], [9; 3]);
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
    drop(backend);
    test.assert_no_live_objects();
}

#[test]
fn bad_requests_are_refused_with_what_would_be_valid() {
    let (test, backend) = backend();
    let id = DeviceId::Cuda(test.ordinal());
    let unknown = DeviceId::Cuda(u32::MAX);
    let error = backend.allocate(unknown, MemoryKind::Device, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownDevice);
    assert!(error.to_string().contains(&id.to_string()), "{error}");
    assert_eq!(backend.allocate(id, MemoryKind::Device, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(backend.allocate(id, MemoryKind::Pageable, 1).unwrap_err().kind(), ErrorKind::Unsupported);
    for len in [0, usize::MAX, usize::MAX / 4] {
        assert_eq!(
            backend.create_buffer::<u64>(test.ordinal(), len).unwrap_err().kind(),
            ErrorKind::InvalidArgument,
            "{len}"
        );
    }
    let missing = CudaBackendConfig::default().with_devices([u32::MAX]);
    assert_eq!(CudaBackend::open(&missing).unwrap_err().kind(), ErrorKind::UnknownDevice);
    let none = CudaBackendConfig::default().with_devices([]);
    assert_eq!(CudaBackend::open(&none).unwrap_err().kind(), ErrorKind::NoDevice);
}

#[test]
fn the_copier_of_a_path_is_the_device_at_its_end() {
    let (test, backend) = backend();
    let id = DeviceId::Cuda(test.ordinal());
    let host = Place::new(DeviceId::Cpu, MemoryKind::Pageable);
    let here = Place::new(id, MemoryKind::Device);
    let elsewhere = Place::new(DeviceId::Cuda(u32::MAX), MemoryKind::Device);
    assert_eq!(backend.copier(host, here), Some(id));
    assert_eq!(backend.copier(here, host), Some(id));
    assert_eq!(backend.copier(here, here), Some(id));
    assert_eq!(backend.copier(host, host), None);
    assert_eq!(backend.copier(here, elsewhere), None);
    for cost in backend.default_costs() {
        let queue = backend.lease_queue(id, StreamPriority::Normal, WorkloadType::Memory).unwrap();
        assert!(
            queue.can_copy(cost.path.src, cost.path.dst),
            "a cost for a path without a queue: {}",
            cost.path
        );
    }
}

#[test]
fn a_leased_queue_copies_and_its_lease_is_counted() {
    let (test, backend) = backend();
    let id = DeviceId::Cuda(test.ordinal());
    let queue = backend.lease_queue(id, StreamPriority::High, WorkloadType::Memory).unwrap();
    assert_eq!(backend.resource_counts().leases, 1);
    let host = backend.allocate(id, MemoryKind::Pinned, 100).unwrap();
    let there = backend.allocate(id, MemoryKind::Device, 100).unwrap();
    host.write().unwrap().fill(5);
    submit(&*queue, &Operation::Copy { src: &host, dst: &there }, Timing::Off).unwrap();
    let back = submit(&*queue, &Operation::Copy { src: &there, dst: &host }, Timing::Off).unwrap();
    back.wait().unwrap();
    assert_eq!(*host.read().unwrap(), [5; 100]);
    drop((queue, host, there));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
}

#[test]
fn context_is_usable_on_new_thread_without_trace() {
    let (test, backend) = backend();
    let ordinal = test.ordinal();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let buffer = backend.create_buffer::<u32>(ordinal, 100).unwrap();
            buffer.fill(3).unwrap();
            let mut current = std::ptr::dangling_mut();
            // SAFETY: the out pointer is valid for the call.
            let code = unsafe { transload_cuda_sys::ffi::cuCtxGetCurrent(&mut current) };
            assert_eq!((code, current.is_null()), (0, true), "a thread keeps the context it had: none");
        });
    });
}

#[test]
fn the_primary_context_is_shared_with_cust() {
    let (test, backend) = backend();
    let device = CudaDevice::new(test.ordinal()).unwrap();
    let ours = backend.device(test.ordinal()).unwrap().context().unwrap().as_raw();
    let theirs = transload_cuda_sys::cust::context::Context::new(device.driver().to_cust().unwrap()).unwrap();
    assert_eq!(theirs.as_raw(), ours);
}
