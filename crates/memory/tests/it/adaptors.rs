//! What an adaptor leaves as it is: what is asked of the resource within reaches it, and what it says of itself and its segments
//! comes out again.

use std::sync::Arc;

use transload_core::{ErrorKind, MemoryKind};
use transload_memory::{CudaMemoryManager, CudaResource, LimitingResource, MemoryResource, UploadBuffer};

use super::{failing::FailingResource, manager, shared};

fn pinned(memory: &Arc<CudaMemoryManager>) -> CudaResource {
    CudaResource::new(memory, MemoryKind::Pinned).unwrap()
}

#[test]
fn a_trim_reaches_the_resource_within() {
    let memory = shared();
    let within = Arc::new(FailingResource::new(pinned(&memory)));
    let limited = LimitingResource::new(Arc::clone(&within), 1000);
    limited.trim().unwrap();
    assert_eq!(within.trimmed(), 1);
    assert_eq!((limited.place(), limited.device()), (within.place(), within.device()));
}

#[test]
fn memory_that_takes_nothing_in_stays_so_and_is_known_for_what_it_is() {
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
fn what_the_resource_within_refuses_takes_nothing_of_the_limit() {
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
fn a_limit_beyond_what_there_is_promises_no_more_than_that() {
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
