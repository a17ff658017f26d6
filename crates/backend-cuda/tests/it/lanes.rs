//! The backend's queues: leased by priority and workload from the configured pool.

use std::collections::HashSet;

use transload_backend_cuda::{AllocationStrategy, CudaBackend, CudaBackendConfig};
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, Place, StreamPriority, Timing, WorkloadType, submit,
};
use transload_cuda_sim::harness;

const WORKLOADS: [WorkloadType; 4] =
    [WorkloadType::Compute, WorkloadType::Memory, WorkloadType::Mixed, WorkloadType::Coordination];

#[test]
fn workloads_have_own_queues_and_leases_count() {
    let test = harness::device().end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = CudaBackend::open(&config).unwrap();
    let id = DeviceId::Cuda(test.ordinal());
    let lease = |workload| backend.lease_queue(id, StreamPriority::Normal, workload).unwrap();
    let held: Vec<_> = WORKLOADS.into_iter().map(lease).collect();
    let streams: HashSet<_> = held.iter().map(|queue| queue.raw_handle()).collect();
    assert_eq!(streams.len(), 4);
    assert_eq!(backend.resource_counts().leases, 4);
    held[0].released();
    assert_eq!(backend.resource_counts().leases, 4, "a lease ends when it is dropped");
    drop(held);
    assert_eq!(backend.resource_counts().leases, 0);
    assert_eq!(backend.streams(test.ordinal()).unwrap().strategy(), AllocationStrategy::Workload);
    assert_eq!(backend.streams(u32::MAX).unwrap_err().kind(), ErrorKind::UnknownDevice);
    drop(backend);
    test.assert_no_live_objects();
}

#[test]
fn the_configuration_sets_strategy_and_number_of_streams() {
    let test = harness::device().end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = CudaBackend::open(
        &config.clone().with_streams_per_priority(2).with_strategy(AllocationStrategy::LoadBalanced),
    )
    .unwrap();
    let id = DeviceId::Cuda(test.ordinal());
    let held: Vec<_> =
        (0..9).map(|n| backend.lease_queue(id, StreamPriority::Low, WORKLOADS[n % 4]).unwrap()).collect();
    let streams: HashSet<_> = held.iter().map(|queue| queue.raw_handle()).collect();
    assert_eq!(streams.len(), 2);
    drop((held, backend));
    for streams in [0, 65] {
        let error = CudaBackend::open(&config.clone().with_streams_per_priority(streams)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("valid are 1 to 64"), "{error}");
    }
}

#[test]
fn in_place_copier_exists_for_what_queues_copy() {
    let test = harness::device().end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = CudaBackend::open(&config).unwrap();
    let id = DeviceId::Cuda(test.ordinal());
    let queue = backend.lease_queue(id, StreamPriority::Normal, WorkloadType::Compute).unwrap();
    let kinds = [MemoryKind::Mapped, MemoryKind::Pinned, MemoryKind::Device];
    for (from, to) in kinds.into_iter().flat_map(|from| kinds.into_iter().map(move |to| (from, to))) {
        let (src, dst) = (backend.allocate(id, from, 64).unwrap(), backend.allocate(id, to, 64).unwrap());
        let copier = backend.in_place_copier(src.place(), dst.place());
        let copied = submit(&*queue, &Operation::CopyInPlace { src: &src, dst: &dst }, Timing::Off);
        assert_eq!(copier.is_some(), copied.is_ok(), "{from} → {to}");
        if let Ok(fence) = copied {
            assert_eq!(copier, Some(id));
            fence.wait().unwrap();
        }
    }
    let nowhere = Place::new(DeviceId::Cuda(u32::MAX), MemoryKind::Device);
    let mapped = Place::new(DeviceId::Cpu, MemoryKind::Mapped);
    assert_eq!(backend.in_place_copier(mapped, nowhere), None);
    drop(queue);
    backend.drain().unwrap();
    drop(backend);
    test.assert_no_live_objects();
}
