//! Guarantees of resources and their adaptors.

use std::sync::Arc;

use crate::failing::FailingResource;
use transload_core::{DeviceId, ErrorKind, MemoryKind};
use transload_memory::{CudaResource, LimitingResource, MemoryResource};

use super::manager;

#[test]
fn resource_allocates_its_kind_and_names_its_device() {
    let (device, memory) = manager();
    let memory = Arc::new(memory);
    let own = DeviceId::Cuda(device.ordinal());
    for kind in memory.kinds() {
        let resource = CudaResource::new(&memory, kind).unwrap();
        let segment = resource.allocate_segment(100_000).unwrap();
        assert_eq!((segment.len(), segment.place()), (100_000, resource.place()));
        let is_hosts = matches!(kind, MemoryKind::Pinned | MemoryKind::Mapped);
        assert_eq!(resource.device(), (!is_hosts).then_some(own));
        // The driver reports only device memory; Linux reports the host's.
        match resource.info() {
            Ok(info) => assert!(0 < info.free && info.free <= info.total, "{kind}: {info:?}"),
            Err(error) => assert!(is_hosts && !cfg!(target_os = "linux"), "{kind}: {error}"),
        }
        drop(segment);
        resource.trim().unwrap();
    }
    assert!(memory.resource_counts().is_empty());
    drop(memory);
    device.assert_no_live_objects();
}

#[test]
fn limit_counts_segments_until_they_are_freed() {
    let (_device, memory) = manager();
    let resource = CudaResource::new(&Arc::new(memory), MemoryKind::Pinned).unwrap();
    let limited = LimitingResource::new(resource, 1 << 20);
    let segment = limited.allocate_segment(900_000).unwrap();
    let error = limited.allocate_segment(200_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let shortage = error.memory_shortage().unwrap();
    assert_eq!((shortage.requested, shortage.free, shortage.total), (200_000, Some(148_576), Some(1 << 20)));
    let slice = segment.slice(..10).unwrap();
    drop(segment);
    assert_eq!(limited.used(), 900_000, "a slice keeps it");
    drop(slice);
    assert_eq!(limited.used(), 0);
    assert!(limited.allocate_segment(0).is_err() && limited.used() == 0, "a refusal counts for nothing");
    assert_eq!(limited.info().unwrap().free, 1 << 20);
}

#[test]
fn failing_resource_fails_as_often_as_set() {
    let (_device, memory) = manager();
    let failing = FailingResource::new(CudaResource::new(&Arc::new(memory), MemoryKind::Device).unwrap());
    failing.refuse(1);
    assert_eq!(failing.allocate_segment(1000).unwrap_err().kind(), ErrorKind::OutOfMemory);
    drop(failing.allocate_segment(1000).unwrap());
    failing.trim().unwrap();
    assert_eq!((failing.asked(), failing.trimmed()), (2, 1));
}
