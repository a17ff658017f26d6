//! Where memory is short everything that can be given back is, in order, before an error says so.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use transload_core::{ErrorKind, MemoryKind};
use transload_memory::{CudaResource, LimitingResource, MemoryResource};
use transload_streams::StreamOrderedAllocator;

use crate::{
    allocator::across_streams::fill,
    allocator::{Bed, watched},
    support::failing::FailingResource,
};

const MIB: usize = 1 << 20;

fn limited(limit: u64) -> Bed {
    Bed::with(MemoryKind::Device, |resource| {
        StreamOrderedAllocator::builder(resource).limit(limit).build().unwrap()
    })
}

#[test]
fn the_limit_holds_and_the_error_tells_the_numbers() {
    let bed = limited(8 << 20);
    let stream = bed.stream();
    let block = bed.allocator.allocate_for_stream(&stream, 5 * MIB).unwrap();
    let error = bed.allocator.allocate_for_stream(&stream, 4 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    let shortage = error.memory_shortage().unwrap();
    assert_eq!((shortage.requested, shortage.free, shortage.total), (4 << 20, Some(3 << 20), Some(8 << 20)));
    let small = bed.allocator.allocate_for_stream(&stream, 2 * MIB).unwrap();
    assert!(bed.allocator.statistics().reserved <= 8 << 20);
    bed.allocator.free_for_stream(block, &stream).unwrap();
    bed.allocator.free_for_stream(small, &stream).unwrap();
    bed.allocator.allocate_for_stream(&stream, 8 * MIB).map(|_| ()).unwrap();
    drop(stream);
    bed.finish();
}

#[test]
fn memory_freed_on_other_streams_is_given_back_before_an_error() {
    let bed = limited(8 << 20);
    let (one, two) = (bed.stream(), bed.stream());
    // Two segments of 4 MiB, neither large enough.
    let blocks = [&one, &two].map(|stream| {
        let block = bed.allocator.allocate_for_stream(stream, 4 * MIB).unwrap();
        fill(stream, block, 1);
        (block, stream)
    });
    for (block, stream) in blocks {
        bed.allocator.free_for_stream(block, stream).unwrap();
    }
    let whole = bed.allocator.allocate_for_stream(&one, 8 * MIB).unwrap();
    fill(&one, whole, 2);
    one.synchronize().unwrap();
    drop((one, two));
    bed.finish();
}

#[test]
fn a_callback_that_frees_is_asked_and_the_request_succeeds() {
    let bed = limited(4 << 20);
    let stream = bed.stream();
    let cached = Arc::new(Mutex::new(vec![bed.allocator.allocate_for_stream(&stream, 3 * MIB).unwrap()]));
    let asked = Arc::new(AtomicU64::new(0));
    let id = bed.allocator.on_out_of_memory({
        let (allocator, cached, asked) = (bed.allocator.clone(), Arc::clone(&cached), Arc::clone(&asked));
        move |shortage| {
            assert!(shortage.requested >= 2 << 20);
            asked.fetch_add(1, Ordering::Relaxed);
            let blocks: Vec<_> = cached.lock().unwrap().drain(..).collect();
            blocks.iter().for_each(|block| allocator.free(*block).unwrap());
            !blocks.is_empty()
        }
    });
    let block = bed.allocator.allocate_for_stream(&stream, 2 * MIB).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    // Asked again it has nothing; removed, it is not asked any more.
    let refused = bed.allocator.allocate_for_stream(&stream, 2 * MIB + 512).unwrap_err();
    assert_eq!((refused.kind(), asked.load(Ordering::Relaxed)), (ErrorKind::OutOfMemory, 2));
    bed.allocator.remove_callback(id);
    bed.allocator.allocate_for_stream(&stream, 2 * MIB + 512).unwrap_err();
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    bed.allocator.free_for_stream(block, &stream).unwrap();
    drop(stream);
    bed.finish();
}

#[test]
fn a_callback_that_allocates_itself_does_not_call_itself() {
    let bed = limited(2 << 20);
    let stream = bed.stream();
    let id = bed.allocator.on_out_of_memory({
        let (allocator, stream) = (bed.allocator.clone(), stream.clone());
        move |_| allocator.allocate_for_stream(&stream, 2 * MIB).is_ok()
    });
    let block = bed.allocator.allocate_for_stream(&stream, MIB).unwrap();
    let error = bed.allocator.allocate_for_stream(&stream, 2 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    bed.allocator.remove_callback(id);
    bed.allocator.free_for_stream(block, &stream).unwrap();
    drop(stream);
    bed.finish();
}

#[test]
fn a_request_that_cannot_be_met_ends_in_an_error_while_others_go_on() {
    watched(|| {
        let bed = limited(8 << 20);
        let keeper = bed.stream();
        let live = bed.allocator.allocate_for_stream(&keeper, 4 * MIB).unwrap();
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let streams = [bed.stream(), bed.stream()];
                    let mut round = 0_usize;
                    // Each takes what the other has just freed.
                    while !ended.load(Ordering::Acquire) {
                        let stream = &streams[round % 2];
                        if let Ok(block) = bed.allocator.allocate_for_stream(stream, 700_000) {
                            bed.allocator.free_for_stream(block, stream).unwrap();
                        }
                        round += 1;
                    }
                });
            }
            for _ in 0..5 {
                let error = bed.allocator.allocate_for_stream(&keeper, 5 * MIB).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            }
            ended.store(true, Ordering::Release);
        });
        bed.allocator.free_for_stream(live, &keeper).unwrap();
        drop(keeper);
        bed.finish();
    });
}

#[test]
fn the_upstream_is_trimmed_and_asked_again_before_an_error() {
    let bed = Bed::new();
    let stream = bed.stream();
    let failing = Arc::new(FailingResource::new(CudaResource::new(&bed.memory, MemoryKind::Device).unwrap()));
    let allocator = StreamOrderedAllocator::new(Arc::clone(&failing));
    // The usual size, then just what is needed, then once more after everything was given back.
    failing.refuse(2);
    let block = allocator.allocate_for_stream(&stream, 1000).unwrap();
    assert_eq!((failing.asked(), failing.trimmed()), (3, 1));
    failing.refuse(u64::MAX);
    let error = allocator.allocate_for_stream(&stream, 30 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    allocator.free_for_stream(block, &stream).unwrap();
    drop((allocator, failing, stream));
    bed.finish();
}

#[test]
fn a_smaller_segment_is_taken_where_the_usual_one_does_not_fit() {
    let bed = Bed::new();
    let stream = bed.stream();
    let upstream = CudaResource::new(&bed.memory, MemoryKind::Device).unwrap();
    let limited = Arc::new(LimitingResource::new(upstream, 3 << 20));
    let allocator = StreamOrderedAllocator::new(Arc::clone(&limited));
    let block = allocator.allocate_for_stream(&stream, 2 * MIB).unwrap();
    assert_eq!((limited.used(), limited.info().unwrap().total), (2 << 20, 3 << 20));
    assert_eq!(allocator.allocate_for_stream(&stream, 2 * MIB).unwrap_err().kind(), ErrorKind::OutOfMemory);
    allocator.free_for_stream(block, &stream).unwrap();
    stream.synchronize().unwrap();
    allocator.trim().unwrap();
    assert_eq!(limited.used(), 0);
    drop((allocator, limited, stream));
    bed.finish();
}
