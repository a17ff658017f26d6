//! Guarantees of the memory manager, on the simulated driver and on a real one (`TRANSLOAD_TEST_DRIVER=real`).
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail their tests")]

mod adaptors;
mod adopt;
mod failing;
#[path = "../../../core/tests/shared/gate.rs"]
mod gate;
mod heap;
mod hints;
mod host_pages;
mod migration_counts;
mod pinned;
mod policy;
mod predictor;
mod registration;
mod registration_order;
mod resource;

use std::sync::Arc;

use transload_core::{ErrorKind, MemoryKind, RawBuffer};
use transload_cuda_sim::harness::{self, EndCheck};
use transload_memory::{CudaDevice, CudaFeature, CudaMemoryManager};

fn manager() -> (EndCheck, CudaMemoryManager) {
    let device = harness::device().end_check();
    let memory = CudaMemoryManager::new(&CudaDevice::new(device.ordinal()).unwrap()).unwrap();
    (device, memory)
}

/// A shared manager, and a check at the end of the test.
struct Shared {
    memory: Arc<CudaMemoryManager>,
    _end: EndCheck,
}

impl std::ops::Deref for Shared {
    type Target = Arc<CudaMemoryManager>;

    fn deref(&self) -> &Self::Target {
        &self.memory
    }
}

fn shared() -> Shared {
    let (_end, memory) = manager();
    Shared { memory: Arc::new(memory), _end }
}

#[test]
fn every_kind_is_allocated_in_place_and_freed_once() {
    let (device, memory) = manager();
    for kind in memory.kinds() {
        let buffer = memory.allocate(kind, 12_345).unwrap();
        assert_eq!(buffer.len(), 12_345);
        assert_eq!(buffer.place().kind, kind);
        assert_eq!(buffer.place().device.is_cpu(), matches!(kind, MemoryKind::Pinned | MemoryKind::Mapped));
        assert!(buffer.device_address().is_some(), "with unified addressing devices use {kind} memory");
        assert_eq!(memory.resource_counts().allocations, 1);
        assert_eq!(memory.resource_counts().bytes, 12_345);
        let view = buffer.slice(10..20).unwrap();
        drop(buffer);
        assert_eq!(memory.resource_counts().allocations, 1, "a slice keeps the {kind} allocation alive");
        drop(view);
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{kind}: {}", memory.resource_counts());
    }
    drop(memory);
    device.assert_no_live_objects();
}

#[test]
fn host_writes_and_reads_every_accessible_kind() {
    let (_device, memory) = manager();
    for kind in memory.kinds().into_iter().filter(|kind| kind.is_host_visible()) {
        let buffer = memory.allocate(kind, 1000).unwrap();
        buffer.write().unwrap().iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8);
        let view = buffer.read().unwrap();
        assert!(view.iter().enumerate().all(|(index, byte)| *byte == (index % 251) as u8), "{kind}");
    }
    let device_memory = memory.allocate(MemoryKind::Device, 16).unwrap();
    assert_eq!(device_memory.read().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_second_host_view_is_refused_where_they_conflict() {
    let (_device, memory) = manager();
    let buffer = memory.allocate(MemoryKind::Pinned, 100).unwrap();
    let (left, right) = (buffer.slice(..50).unwrap(), buffer.slice(50..).unwrap());
    let reader = left.read().unwrap();
    assert!(left.read().is_ok(), "two readers do not conflict");
    assert_eq!(left.write().unwrap_err().kind(), ErrorKind::Busy);
    assert!(right.write().is_ok(), "disjoint ranges do not conflict");
    drop(reader);
    let writer = left.write().unwrap();
    assert_eq!(buffer.read().unwrap_err().kind(), ErrorKind::Busy);
    drop(writer);
    assert!(buffer.read().is_ok());
}

#[test]
fn bad_sizes_and_kinds_are_refused_with_what_would_be_valid() {
    let (device, memory) = manager();
    assert_eq!(memory.allocate(MemoryKind::Device, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let error = memory.allocate(MemoryKind::Pageable, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("valid are pinned"), "{error}");
    assert!(memory.resource_counts().is_empty());
    drop(memory);
    device.assert_no_live_objects();
}

#[test]
fn pebibyte_is_out_of_memory_and_the_device_keeps_working() {
    const PEBIBYTE: usize = 1 << 50;
    let (_device, memory) = manager();
    for kind in memory.kinds() {
        let error = memory.allocate(kind, PEBIBYTE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{kind}: {error}");
        assert_eq!(error.retry(), transload_core::Retry::AfterFreeing);
        let shortage = error.memory_shortage().unwrap();
        assert_eq!(shortage.requested, PEBIBYTE as u64);
        // The driver does not report host memory; Linux does.
        if matches!(kind, MemoryKind::Device | MemoryKind::Unified) || cfg!(target_os = "linux") {
            let (free, total) = (shortage.free.unwrap(), shortage.total.unwrap());
            assert!(0 < free && free <= total && total < PEBIBYTE as u64);
        }
    }
    assert!(memory.resource_counts().is_empty());
    assert!(memory.allocate(MemoryKind::Device, 4096).is_ok());
}

#[test]
fn unknown_device_error_names_valid_ordinals() {
    let _present = harness::device();
    let error = CudaDevice::new(u32::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownDevice);
    assert!(error.to_string().contains("valid ordinals are 0 to"), "{error}");
}

#[test]
fn features_agree_with_the_compute_capability() {
    let device = CudaDevice::new(harness::device().ordinal()).unwrap();
    let (major, _minor) = device.compute_capability().unwrap();
    assert!(major >= 3);
    assert_eq!(device.supports_feature(CudaFeature::ManagedMemory).unwrap(), major >= 3);
    assert!(device.supports_feature(CudaFeature::UnifiedAddressing).unwrap());
    for feature in CudaFeature::ALL {
        device.supports_feature(feature).unwrap();
    }
}

#[test]
fn concurrent_allocations_are_distinct_and_all_freed() {
    let (device, memory) = manager();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let held: Vec<RawBuffer> =
                    (1..40).map(|size| memory.allocate(MemoryKind::Device, size * 100).unwrap()).collect();
                let mut ranges: Vec<(u64, usize)> =
                    held.iter().map(|buffer| (buffer.device_address().unwrap(), buffer.len())).collect();
                ranges.sort_unstable();
                assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 as u64 <= pair[1].0));
            });
        }
    });
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty());
    drop(memory);
    device.assert_no_live_objects();
}
