//! Advice through the backend reaches the driver, and errors say what would be valid.

use transload_core::{Backend, DeviceId, ErrorKind, MemoryAdvice, MemoryKind};
use transload_memory::{CudaFeature, MemoryLocation, Residency};

use crate::backend;

#[test]
fn what_the_backend_advises_is_what_the_driver_believes() {
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
    assert!(backend.ledger().is_empty(), "{}", backend.ledger());
    drop(backend);
    test.assert_ledger_empty();
}
