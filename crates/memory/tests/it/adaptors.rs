//! What an adaptor forwards: calls reach its upstream, and its segments stay what they were.

use std::sync::Arc;

use transload_core::{ErrorKind, MemoryKind};
use transload_memory::{CudaMemoryManager, CudaResource, LimitingResource, MemoryResource, UploadBuffer};

use super::{failing::FailingResource, manager, shared};

fn pinned(memory: &Arc<CudaMemoryManager>) -> CudaResource {
    CudaResource::new(memory, MemoryKind::Pinned).unwrap()
}

#[test]
fn trim_reaches_the_upstream() {
    let memory = shared();
    let within = Arc::new(FailingResource::new(pinned(&memory)));
    let limited = LimitingResource::new(Arc::clone(&within), 1000);
    limited.trim().unwrap();
    assert_eq!(within.trimmed(), 1);
    assert_eq!((limited.place(), limited.device()), (within.place(), within.device()));
}

#[test]
fn limited_write_combined_memory_stays_read_only() {
    let memory = shared();
    let within = LimitingResource::new(CudaResource::write_combined(&memory), 1000);
    let segment = LimitingResource::new(within, 1000).allocate_segment(100).unwrap();
    assert!(!segment.is_writable());
    assert_eq!(segment.write().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let upload = UploadBuffer::new(segment).unwrap();
    upload.write(0, &[7; 100]).unwrap();
    assert_eq!(*upload.source().read().unwrap(), [7; 100]);
}

#[test]
fn upstream_failure_releases_its_reservation() {
    let memory = shared();
    let within = Arc::new(FailingResource::new(pinned(&memory)));
    let limited = LimitingResource::new(Arc::clone(&within), 1000);
    within.refuse(3);
    for _ in 0..3 {
        assert_eq!(limited.allocate_segment(600).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(limited.used(), 0);
    }
    let all = limited.allocate_segment(1000).unwrap();
    assert_eq!((limited.used(), limited.info().unwrap().free), (1000, 0));
    drop(all);
}

#[test]
fn info_of_a_huge_limit_is_the_upstreams() {
    let memory = shared();
    let within = CudaResource::new(&memory, MemoryKind::Device).unwrap();
    let total = within.info().unwrap().total;
    let info = LimitingResource::new(within, u64::MAX).info().unwrap();
    assert!(info.free <= total && info.total == total, "{info:?}");
}

#[test]
fn an_upstream_that_fails_at_any_call_leaves_nothing_behind() {
    for nth in 1..8 {
        let (device, memory) = manager();
        let memory = Arc::new(memory);
        let failing = Arc::new(FailingResource::new(pinned(&memory)));
        failing.refuse_call(nth);
        let limited = LimitingResource::new(Arc::clone(&failing), 1 << 20);
        let outcomes: Vec<_> = (0..6).map(|_| limited.allocate_segment(100)).collect();
        let refused: Vec<usize> = (0..6).filter(|index| outcomes[*index].is_err()).collect();
        let expected: Vec<usize> = (nth <= 6).then_some(nth as usize - 1).into_iter().collect();
        assert_eq!(refused, expected);
        assert_eq!(limited.used(), 100 * (6 - expected.len() as u64));
        drop(outcomes);
        assert_eq!(limited.used(), 0);
        drop((limited, failing));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty());
        drop(memory);
        device.assert_no_live_objects();
    }
}

#[test]
fn segments_of_many_threads_are_all_counted() {
    let memory = shared();
    let limited = LimitingResource::new(pinned(&memory), 1 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let limited = &limited;
            scope.spawn(move || {
                let sizes = || (1..20).map(|size| thread * 1000 + size);
                let held: Vec<_> = sizes().map(|size| limited.allocate_segment(size).unwrap()).collect();
                assert!(limited.used() >= sizes().sum::<usize>() as u64);
                drop(held);
            });
        }
    });
    assert_eq!(limited.used(), 0);
}
