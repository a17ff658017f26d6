//! Across streams memory is used again only behind the work that used it, with an event where one is needed and no more.

use transload_core::{MemoryKind, RawBuffer};
use transload_cuda_sim::harness::is_real;
use transload_cuda_sys::{AsStream, check, ffi};
use transload_streams::{CudaStream, StreamBlock, StreamOrderedAllocator};

use crate::{
    allocator::{Bed, calls_of, watched},
    support::gate::Gate,
};

/// Fills a block on a stream.
pub(crate) fn fill(stream: &CudaStream, block: StreamBlock, value: u8) {
    let _bound = stream.context().enter().unwrap();
    // SAFETY: the block is live and in the order of the stream.
    let code =
        unsafe { ffi::cuMemsetD8Async(block.address(), value, block.bytes() as usize, stream.as_raw()) };
    check("cuMemsetD8Async", code).unwrap();
}

/// Copies a block to pinned memory, in the order of the stream.
pub(crate) fn read_back(stream: &CudaStream, block: StreamBlock, into: &RawBuffer) {
    let address = into.host_address().unwrap().as_ptr().expose_provenance() as u64;
    // SAFETY: both are valid for the block's bytes; the host looks only after synchronising.
    unsafe { stream.copy_raw_async(address, block.address(), block.bytes() as usize) }.unwrap();
}

fn count(calls: &[&str], name: &str) -> usize {
    calls.iter().filter(|call| **call == name).count()
}

/// One segment is all there is, so streams must share it.
fn tight() -> Bed {
    Bed::with(MemoryKind::Device, |resource| {
        StreamOrderedAllocator::builder(resource).segments(1 << 20, 1 << 20).limit(1 << 20).build().unwrap()
    })
}

#[test]
fn reuse_in_another_stream_takes_one_event_and_one_wait_and_keeps_contents_right() {
    let bed = tight();
    let (one, two) = (bed.stream(), bed.stream());
    let back = [bed.setup.pinned(&vec![0; 1 << 20]), bed.setup.pinned(&vec![0; 1 << 20])];
    for round in 0..10_u8 {
        let first = bed.allocator.allocate_for_stream(&one, 1 << 20).unwrap();
        fill(&one, first, round);
        read_back(&one, first, &back[0]);
        bed.allocator.free_for_stream(first, &one).unwrap();
        let (second, calls) = calls_of(|| bed.allocator.allocate_for_stream(&two, 1 << 20).unwrap());
        if !is_real() && round == 0 {
            assert_eq!(second.address(), first.address());
            let (records, waits) = (count(&calls, "cuEventRecord"), count(&calls, "cuStreamWaitEvent"));
            assert_eq!((records, waits), (1, 1), "{calls:?}");
        }
        fill(&two, second, round + 100);
        read_back(&two, second, &back[1]);
        two.synchronize().unwrap();
        one.synchronize().unwrap();
        assert!(back[0].read().unwrap().iter().all(|byte| *byte == round), "round {round}");
        assert!(back[1].read().unwrap().iter().all(|byte| *byte == round + 100), "round {round}");
        bed.allocator.free_for_stream(second, &two).unwrap();
    }
    drop((one, two, back));
    bed.finish();
}

#[test]
fn blocks_that_one_event_covers_take_no_second_one() {
    let bed = Bed::new();
    let (one, two) = (bed.stream(), bed.stream());
    let blocks: Vec<_> =
        (0..8).map(|_| bed.allocator.allocate_for_stream(&one, 256 << 10).unwrap()).collect();
    let mut sorted = blocks.clone();
    sorted.sort_by_key(|block| block.address());
    for block in &sorted {
        fill(&one, *block, 1);
    }
    // Every second one stays live, so that nothing is joined.
    for block in sorted.iter().step_by(2) {
        bed.allocator.free_for_stream(*block, &one).unwrap();
    }
    let (_, calls) = calls_of(|| {
        (0..4).map(|_| bed.allocator.allocate_for_stream(&two, 256 << 10).unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(bed.allocator.statistics().segments, 1);
    assert!(count(&calls, "cuEventRecord") <= 1 && count(&calls, "cuStreamWaitEvent") <= 1, "{calls:?}");
    drop((one, two));
    bed.finish();
}

#[test]
fn what_is_known_to_be_over_is_taken_without_a_wait() {
    let bed = Bed::new();
    let (one, two) = (bed.stream(), bed.stream());
    let block = bed.allocator.allocate_for_stream(&one, 1000).unwrap();
    fill(&one, block, 1);
    bed.allocator.free_for_stream(block, &one).unwrap();
    one.synchronize().unwrap();
    // A trim finds the stream idle, and keeps the segment for its second block.
    let _kept = bed.allocator.allocate_for_stream(&one, 5000).unwrap();
    bed.allocator.trim().unwrap();
    let (again, calls) = calls_of(|| bed.allocator.allocate_for_stream(&two, 1000).unwrap());
    assert_eq!(again.address(), block.address());
    assert_eq!(count(&calls, "cuEventRecord") + count(&calls, "cuStreamWaitEvent"), 0, "{calls:?}");
    assert_eq!(bed.allocator.statistics().served.other_stream_complete, 1);
    drop((one, two));
    bed.finish();
}

#[test]
fn a_dependency_lets_the_other_streams_blocks_be_used_without_another_event() {
    let bed = tight();
    let (producer, consumer) = (bed.stream(), bed.stream());
    let block = bed.allocator.allocate_for_stream(&producer, 1 << 20).unwrap();
    fill(&producer, block, 1);
    bed.allocator.free_for_stream(block, &producer).unwrap();
    bed.allocator.add_stream_dependency(&consumer, &producer).unwrap();
    let (again, calls) = calls_of(|| bed.allocator.allocate_for_stream(&consumer, 1 << 20).unwrap());
    assert_eq!(again.address(), block.address());
    assert_eq!(count(&calls, "cuEventRecord") + count(&calls, "cuStreamWaitEvent"), 0, "{calls:?}");
    fill(&consumer, again, 2);
    producer.synchronize().unwrap();
    assert!(bed.allocator.dependencies_satisfied(&consumer));
    bed.allocator.clear_dependencies(&consumer);
    assert!(bed.allocator.dependencies_satisfied(&consumer), "nothing is left to wait for");
    consumer.synchronize().unwrap();
    drop((producer, consumer));
    bed.finish();
}

#[test]
fn a_dependency_that_is_in_flight_is_not_satisfied() {
    let bed = Bed::new();
    let (producer, consumer) = (bed.stream(), bed.stream());
    let block = bed.allocator.allocate_for_stream(&producer, 9000).unwrap();
    let gate = Gate::before(bed.device(), &[&producer]);
    fill(&producer, block, 1);
    bed.allocator.add_stream_dependency(&consumer, &producer).unwrap();
    assert!(!bed.allocator.dependencies_satisfied(&consumer));
    gate.open();
    producer.synchronize().unwrap();
    assert!(bed.allocator.dependencies_satisfied(&consumer));
    drop((producer, consumer));
    bed.finish();
}

#[test]
fn a_block_that_another_stream_uses_is_not_reused_before_that_one_has_done_so() {
    let bed = tight();
    let (own, user) = (bed.stream(), bed.stream());
    let back = bed.setup.pinned(&vec![0; 1 << 20]);
    for round in 0..10_u8 {
        let block = bed.allocator.allocate_for_stream(&own, 1 << 20).unwrap();
        fill(&own, block, round);
        bed.allocator.add_stream_dependency(&user, &own).unwrap();
        read_back(&user, block, &back);
        bed.allocator.record_use(block, &user).unwrap();
        bed.allocator.free_for_stream(block, &own).unwrap();
        // There is no other memory, so this one comes behind the user's copy.
        let again = bed.allocator.allocate_for_stream(&own, 1 << 20).unwrap();
        assert_eq!(again.address(), block.address());
        fill(&own, again, 0xFF);
        bed.allocator.free_for_stream(again, &own).unwrap();
        user.synchronize().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == round), "round {round}");
    }
    own.synchronize().unwrap();
    drop((own, user, back));
    bed.finish();
}

#[test]
fn what_several_streams_freed_is_joined_behind_all_of_them() {
    let bed = tight();
    let streams: Vec<_> = (0..4).map(|_| bed.stream()).collect();
    for round in 0..5_u8 {
        let blocks: Vec<_> = streams
            .iter()
            .map(|stream| bed.allocator.allocate_for_stream(stream, 256 << 10).unwrap())
            .collect();
        for (stream, block) in streams.iter().zip(&blocks) {
            fill(stream, *block, round);
            bed.allocator.free_for_stream(*block, stream).unwrap();
        }
        let last = &streams[usize::from(round) % 4];
        let whole = bed.allocator.allocate_for_stream(last, 1 << 20).unwrap();
        fill(last, whole, 0xEE);
        bed.allocator.free_for_stream(whole, last).unwrap();
    }
    assert!(bed.allocator.statistics().served.gathered > 0);
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    drop(streams);
    bed.finish();
}

#[test]
fn a_stream_may_go_before_its_blocks_and_its_memory_serves_others_behind_its_work() {
    let bed = tight();
    let next = bed.stream();
    let back = bed.setup.pinned(&vec![0; 512 << 10]);
    for round in 0..10_u8 {
        let gone = bed.stream();
        let live = bed.allocator.allocate_for_stream(&gone, 256 << 10).unwrap();
        let freed = bed.allocator.allocate_for_stream(&gone, 512 << 10).unwrap();
        fill(&gone, freed, round);
        read_back(&gone, freed, &back);
        bed.allocator.free_for_stream(freed, &gone).unwrap();
        drop(gone);
        // Only the memory of the stream that is gone is large enough.
        let again = bed.allocator.allocate_for_stream(&next, 512 << 10).unwrap();
        fill(&next, again, 0xAA);
        next.synchronize().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == round), "round {round}");
        bed.allocator.free_for_stream(again, &next).unwrap();
        assert_eq!(bed.allocator.statistics().live_blocks, 1, "a live block outlives its stream");
        bed.allocator.free(live.address()).unwrap();
    }
    // The whole region is to be had again, in one piece.
    let whole = bed.allocator.allocate_for_stream(&next, 1 << 20).unwrap();
    bed.allocator.free_for_stream(whole, &next).unwrap();
    assert!(bed.allocator.statistics().streams <= 2, "streams that are gone leave nothing behind");
    drop((next, back));
    bed.finish();
}

#[test]
fn a_stream_that_was_released_ends_with_its_last_handle() {
    let bed = Bed::new();
    let (own, user) = (bed.stream(), bed.stream());
    let block = bed.allocator.allocate_for_stream(&own, 1000).unwrap();
    fill(&user, block, 1);
    bed.allocator.record_use(block, &user).unwrap();
    bed.allocator.add_stream_dependency(&own, &user).unwrap();
    bed.allocator.free_for_stream(block, &own).unwrap();
    bed.allocator.release_stream(&user).unwrap();
    let ((), calls) = calls_of(|| drop(user));
    assert_eq!(count(&calls, "cuStreamDestroy_v2"), 1, "{calls:?}");
    drop(own);
    bed.finish();
}

#[test]
fn a_user_that_was_released_and_is_used_again_is_waited_for_again() {
    let bed = tight();
    let (own, user) = (bed.stream(), bed.stream());
    let back = bed.setup.pinned(&vec![0; 1 << 20]);
    let block = bed.allocator.allocate_for_stream(&own, 1 << 20).unwrap();
    fill(&own, block, 7);
    own.synchronize().unwrap();
    bed.allocator.record_use(block, &user).unwrap();
    bed.allocator.release_stream(&user).unwrap();
    let gate = Gate::before(bed.device(), &[&user]);
    read_back(&user, block, &back);
    bed.allocator.record_use(block, &user).unwrap();
    bed.allocator.free_for_stream(block, &own).unwrap();
    let again = bed.allocator.allocate_for_stream(&own, 1 << 20).unwrap();
    assert_eq!(again.address(), block.address());
    fill(&own, again, 0xFF);
    for _ in 0..20 {
        assert!(!own.is_ready().unwrap(), "it comes behind the copy, which waits for the gate");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    gate.open();
    own.synchronize().unwrap();
    user.synchronize().unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 7));
    bed.allocator.free_for_stream(again, &own).unwrap();
    drop((own, user, back));
    bed.finish();
}

#[test]
fn streams_that_come_and_go_in_many_threads_leave_their_memory_to_the_others() {
    watched(come_and_go);
}

fn come_and_go() {
    let bed = Bed::new();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let bed = &bed;
            scope.spawn(move || {
                let back = bed.setup.pinned(&[0; 50_000]);
                let mut left = Vec::new();
                for round in 0..40_u8 {
                    let stream = bed.stream();
                    let value = thread.wrapping_mul(40) + round;
                    let (block, kept) = (
                        bed.allocator.allocate_for_stream(&stream, 50_000).unwrap(),
                        bed.allocator.allocate_for_stream(&stream, 3000).unwrap(),
                    );
                    fill(&stream, block, value);
                    if round % 4 == 0 {
                        read_back(&stream, block, &back);
                    }
                    bed.allocator.free_for_stream(block, &stream).unwrap();
                    if round % 4 == 0 {
                        stream.synchronize().unwrap();
                        assert!(back.read().unwrap().iter().all(|byte| *byte == value), "another's bytes");
                    }
                    let last = bed.allocator.allocate_buffer(&stream, 20_000).unwrap();
                    drop(stream.memset_async(&last, transload_core::Pattern::U8(value)));
                    // Here the stream goes, most often with work in flight.
                    left.push(kept);
                }
                for block in left {
                    bed.allocator.free(block).unwrap();
                }
            });
        }
    });
    let numbers = bed.allocator.statistics();
    assert_eq!((numbers.live_blocks, numbers.in_use), (0, 0));
    assert!(numbers.reserved <= 8 << 20, "{} bytes for streams that are gone", numbers.reserved);
    bed.finish();
}

#[test]
fn an_allocator_dropped_while_its_memory_is_in_use_gives_it_back_afterwards() {
    let bed = Bed::new();
    let (stream, gone) = (bed.stream(), bed.stream());
    let live = bed.allocator.allocate_for_stream(&stream, 3 << 20).unwrap();
    let other = bed.allocator.allocate_for_stream(&gone, 3 << 20).unwrap();
    fill(&stream, live, 1);
    fill(&gone, other, 1);
    drop(gone);
    // Nothing was waited for, nor freed: `finish` drops the allocator first.
    drop(stream);
    bed.finish();
}
