//! Advice through the backend reaches the driver, and errors say what would be valid.

use transload_backend_cpu::CpuBackend;
use transload_core::{Backend, DeviceId, ErrorKind, MemoryAdvice, MemoryKind, StreamPriority, WorkloadType};
use transload_memory::{CudaFeature, MemoryLocation, PrefetchEntry, PrefetchPlan, Residency};

use crate::backend;

#[test]
fn advice_reaches_the_driver() {
    let (test, backend) = backend();
    if !backend.supports_feature(CudaFeature::ConcurrentManagedAccess).unwrap() {
        println!("skipped: host and device cannot use unified memory at the same time");
        return;
    }
    let here = DeviceId::Cuda(test.ordinal());
    let buffer = backend.allocate(here, MemoryKind::Unified, 4 << 20).unwrap();
    backend.advise(&buffer, MemoryAdvice::SetPreferredLocation(DeviceId::Cpu)).unwrap();
    backend.advise(&buffer, MemoryAdvice::SetAccessedBy(here)).unwrap();
    let believed = Residency::of(&buffer).unwrap();
    assert_eq!(believed.preferred, Some(MemoryLocation::Host), "the host means the host");
    assert_eq!(believed.accessed_by, [MemoryLocation::Device(test.ordinal())]);
    let pinned = backend.allocate(here, MemoryKind::Pinned, 4096).unwrap();
    let error = backend.advise(&pinned, MemoryAdvice::SetReadMostly).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = backend.advise(&buffer, MemoryAdvice::SetAccessedBy(DeviceId::Cuda(10_000))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownDevice);
    drop((buffer, pinned));
    backend.drain().unwrap();
    assert!(backend.resource_counts().is_empty(), "{}", backend.resource_counts());
    drop(backend);
    test.assert_no_live_objects();
}

#[test]
fn a_queue_that_is_no_stream_prefetches_nothing() {
    let (test, backend) = backend();
    let Ok(buffer) = backend.allocate(DeviceId::Cuda(test.ordinal()), MemoryKind::Unified, 4096) else {
        println!("skipped: the device has no unified memory");
        return;
    };
    let host = CpuBackend::new().unwrap();
    let queue = host.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let (mut owned, mut raw) = (PrefetchPlan::new(), PrefetchPlan::new());
    owned.add_buffer(&buffer, PrefetchEntry::HOST);
    raw.add(owned.entries()[0]);
    for plan in [&owned, &raw] {
        let error = plan.execute(&*queue).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    assert_eq!(Residency::of(&buffer).unwrap().last_prefetch, None);
    drop((owned, raw, buffer, queue));
    backend.drain().unwrap();
    drop(backend);
    test.assert_no_live_objects();
}
