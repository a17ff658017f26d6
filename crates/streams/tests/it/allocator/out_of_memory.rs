//! On a shortage, every source of memory is tried in order before an error is returned.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use transload_core::{ErrorKind, MemoryKind};
use transload_memory::{CudaResource, LimitingResource, MemoryResource};
use transload_streams::StreamOrderedAllocator;

use crate::{
    allocator::across_streams::fill,
    allocator::{Fixture, watched},
    support::failing::FailingResource,
};

const MIB: usize = 1 << 20;

fn limited(limit: u64) -> Fixture {
    Fixture::with(MemoryKind::Device, |resource| {
        StreamOrderedAllocator::builder(resource).limit(limit).build().unwrap()
    })
}

#[test]
fn limit_is_enforced_and_its_error_has_the_numbers() {
    let fixture = limited(8 << 20);
    let stream = fixture.stream();
    let block = fixture.allocator.allocate_for_stream(&stream, 5 * MIB).unwrap();
    let error = fixture.allocator.allocate_for_stream(&stream, 4 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let shortage = error.memory_shortage().unwrap();
    assert_eq!((shortage.requested, shortage.free, shortage.total), (4 << 20, Some(3 << 20), Some(8 << 20)));
    let small = fixture.allocator.allocate_for_stream(&stream, 2 * MIB).unwrap();
    assert!(fixture.allocator.statistics().reserved <= 8 << 20);
    fixture.allocator.free_on(block, &stream).unwrap();
    fixture.allocator.free_on(small, &stream).unwrap();
    fixture.allocator.allocate_for_stream(&stream, 8 * MIB).map(|_| ()).unwrap();
    drop(stream);
    fixture.finish();
}

#[test]
fn memory_freed_on_other_streams_is_used_before_an_error() {
    let fixture = limited(8 << 20);
    let (one, two) = (fixture.stream(), fixture.stream());
    // Two segments of 4 MiB, neither large enough.
    let blocks = [&one, &two].map(|stream| {
        let block = fixture.allocator.allocate_for_stream(stream, 4 * MIB).unwrap();
        fill(stream, block, 1);
        (block, stream)
    });
    for (block, stream) in blocks {
        fixture.allocator.free_on(block, stream).unwrap();
    }
    let whole = fixture.allocator.allocate_for_stream(&one, 8 * MIB).unwrap();
    fill(&one, whole, 2);
    one.synchronize().unwrap();
    drop((one, two));
    fixture.finish();
}

#[test]
fn request_succeeds_after_a_callback_frees() {
    let fixture = limited(4 << 20);
    let stream = fixture.stream();
    let cached = Arc::new(Mutex::new(vec![fixture.allocator.allocate_for_stream(&stream, 3 * MIB).unwrap()]));
    let asked = Arc::new(AtomicU64::new(0));
    let id = fixture.allocator.on_out_of_memory({
        let (allocator, cached, asked) = (fixture.allocator.clone(), Arc::clone(&cached), Arc::clone(&asked));
        move |shortage| {
            assert!(shortage.requested >= 2 << 20);
            asked.fetch_add(1, Ordering::Relaxed);
            let blocks: Vec<_> = cached.lock().unwrap().drain(..).collect();
            blocks.iter().for_each(|block| allocator.free(*block).unwrap());
            !blocks.is_empty()
        }
    });
    let block = fixture.allocator.allocate_for_stream(&stream, 2 * MIB).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    // Called again, it has nothing to free; once removed, it is not called.
    let refused = fixture.allocator.allocate_for_stream(&stream, 2 * MIB + 512).unwrap_err();
    assert_eq!((refused.kind(), asked.load(Ordering::Relaxed)), (ErrorKind::OutOfMemory, 2));
    fixture.allocator.remove_callback(id);
    fixture.allocator.allocate_for_stream(&stream, 2 * MIB + 512).unwrap_err();
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    fixture.allocator.free_on(block, &stream).unwrap();
    drop(stream);
    fixture.finish();
}

#[test]
fn callback_that_allocates_is_not_called_recursively() {
    let fixture = limited(2 << 20);
    let stream = fixture.stream();
    let id = fixture.allocator.on_out_of_memory({
        let (allocator, stream) = (fixture.allocator.clone(), stream.clone());
        move |_| allocator.allocate_for_stream(&stream, 2 * MIB).is_ok()
    });
    let block = fixture.allocator.allocate_for_stream(&stream, MIB).unwrap();
    let error = fixture.allocator.allocate_for_stream(&stream, 2 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    fixture.allocator.remove_callback(id);
    fixture.allocator.free_on(block, &stream).unwrap();
    drop(stream);
    fixture.finish();
}

#[test]
fn unmet_request_fails_while_others_go_on() {
    watched(|| {
        let fixture = limited(8 << 20);
        let keeper = fixture.stream();
        let live = fixture.allocator.allocate_for_stream(&keeper, 4 * MIB).unwrap();
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let streams = [fixture.stream(), fixture.stream()];
                    let mut round = 0_usize;
                    // Each thread takes what the other has just freed.
                    while !ended.load(Ordering::Acquire) {
                        let stream = &streams[round % 2];
                        if let Ok(block) = fixture.allocator.allocate_for_stream(stream, 700_000) {
                            fixture.allocator.free_on(block, stream).unwrap();
                        }
                        round += 1;
                    }
                });
            }
            for _ in 0..5 {
                let error = fixture.allocator.allocate_for_stream(&keeper, 5 * MIB).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            }
            ended.store(true, Ordering::Release);
        });
        fixture.allocator.free_on(live, &keeper).unwrap();
        drop(keeper);
        fixture.finish();
    });
}

#[test]
fn upstream_is_trimmed_and_retried_before_an_error() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let failing =
        Arc::new(FailingResource::new(CudaResource::new(&fixture.memory, MemoryKind::Device).unwrap()));
    let allocator = StreamOrderedAllocator::new(Arc::clone(&failing));
    // The usual size, then the exact size, then again after everything else was released.
    failing.refuse(2);
    let block = allocator.allocate_for_stream(&stream, 1000).unwrap();
    assert_eq!((failing.asked(), failing.trimmed()), (3, 1));
    failing.refuse(u64::MAX);
    let error = allocator.allocate_for_stream(&stream, 30 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    allocator.free_on(block, &stream).unwrap();
    drop((allocator, failing, stream));
    fixture.finish();
}

#[test]
fn smaller_segment_is_tried_if_the_usual_one_fails() {
    let fixture = Fixture::new();
    let stream = fixture.stream();
    let upstream = CudaResource::new(&fixture.memory, MemoryKind::Device).unwrap();
    let limited = Arc::new(LimitingResource::new(upstream, 3 << 20));
    let allocator = StreamOrderedAllocator::new(Arc::clone(&limited));
    let block = allocator.allocate_for_stream(&stream, 2 * MIB).unwrap();
    assert_eq!((limited.used(), limited.info().unwrap().total), (2 << 20, 3 << 20));
    assert_eq!(allocator.allocate_for_stream(&stream, 2 * MIB).unwrap_err().kind(), ErrorKind::OutOfMemory);
    allocator.free_on(block, &stream).unwrap();
    stream.synchronize().unwrap();
    allocator.trim().unwrap();
    assert_eq!(limited.used(), 0);
    drop((allocator, limited, stream));
    fixture.finish();
}
