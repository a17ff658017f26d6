//! Reuse across streams: only after the work that used the memory, with as few events as possible.

use transload_core::{ErrorKind, MemoryKind, Pattern, RawBuffer};
use transload_cuda_sim::harness::is_real;
use transload_cuda_sys::{AsStream, Capture, CaptureMode, check, ffi};
use transload_streams::{CudaEvent, CudaStream, StreamBlock, StreamOrderedAllocator};

use crate::{
    allocator::{Fixture, calls_of, watched},
    support::gate::Gate,
};

/// Fills a block on a stream.
pub(crate) fn fill(stream: &CudaStream, block: StreamBlock, value: u8) {
    let _bound = stream.context().enter().unwrap();
    // SAFETY: the block is live and usable in stream order.
    let code =
        unsafe { ffi::cuMemsetD8Async(block.address(), value, block.bytes() as usize, stream.as_raw()) };
    check("cuMemsetD8Async", code).unwrap();
}

/// Copies a block to pinned memory, in the order of the stream.
pub(crate) fn read_back(stream: &CudaStream, block: StreamBlock, into: &RawBuffer) {
    let address = into.host_address().unwrap().as_ptr().expose_provenance() as u64;
    // SAFETY: both are valid for the block's bytes; the host reads only after synchronising.
    unsafe { stream.copy_raw_async(address, block.address(), block.bytes() as usize) }.unwrap();
}

fn count(calls: &[&str], name: &str) -> usize {
    calls.iter().filter(|call| **call == name).count()
}

/// A limit of one segment, so that streams must share it.
fn tight() -> Fixture {
    Fixture::with(MemoryKind::Device, |resource| {
        StreamOrderedAllocator::builder(resource).segments(1 << 20, 1 << 20).limit(1 << 20).build().unwrap()
    })
}

#[test]
fn reuse_on_another_stream_takes_one_event_and_one_wait() {
    let fixture = tight();
    let (one, two) = (fixture.stream(), fixture.stream());
    let back = [fixture.setup.pinned(&vec![0; 1 << 20]), fixture.setup.pinned(&vec![0; 1 << 20])];
    for round in 0..10_u8 {
        let first = fixture.allocator.allocate_for_stream(&one, 1 << 20).unwrap();
        fill(&one, first, round);
        read_back(&one, first, &back[0]);
        fixture.allocator.free_on(first, &one).unwrap();
        let (second, calls) = calls_of(|| fixture.allocator.allocate_for_stream(&two, 1 << 20).unwrap());
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
        fixture.allocator.free_on(second, &two).unwrap();
    }
    drop((one, two, back));
    fixture.finish();
}

#[test]
fn blocks_covered_by_one_event_take_no_second() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.stream(), fixture.stream());
    let blocks: Vec<_> =
        (0..8).map(|_| fixture.allocator.allocate_for_stream(&one, 256 << 10).unwrap()).collect();
    let mut sorted = blocks.clone();
    sorted.sort_by_key(|block| block.address());
    for block in &sorted {
        fill(&one, *block, 1);
    }
    // Every second block stays live, so that none can be merged.
    for block in sorted.iter().step_by(2) {
        fixture.allocator.free_on(*block, &one).unwrap();
    }
    let (_, calls) = calls_of(|| {
        (0..4).map(|_| fixture.allocator.allocate_for_stream(&two, 256 << 10).unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(fixture.allocator.statistics().segments, 1);
    assert!(count(&calls, "cuEventRecord") <= 1 && count(&calls, "cuStreamWaitEvent") <= 1, "{calls:?}");
    drop((one, two));
    fixture.finish();
}

#[test]
fn completed_block_is_reused_without_a_wait() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.stream(), fixture.stream());
    let block = fixture.allocator.allocate_for_stream(&one, 1000).unwrap();
    fill(&one, block, 1);
    fixture.allocator.free_on(block, &one).unwrap();
    one.synchronize().unwrap();
    // A trim finds the stream idle, but keeps the segment for its second block.
    let _kept = fixture.allocator.allocate_for_stream(&one, 5000).unwrap();
    fixture.allocator.trim().unwrap();
    let (again, calls) = calls_of(|| fixture.allocator.allocate_for_stream(&two, 1000).unwrap());
    assert_eq!(again.address(), block.address());
    assert_eq!(count(&calls, "cuEventRecord") + count(&calls, "cuStreamWaitEvent"), 0, "{calls:?}");
    assert_eq!(fixture.allocator.statistics().served.other_stream_complete, 1);
    drop((one, two));
    fixture.finish();
}

#[test]
fn dependency_allows_reuse_without_another_event() {
    let fixture = tight();
    let (producer, consumer) = (fixture.stream(), fixture.stream());
    let block = fixture.allocator.allocate_for_stream(&producer, 1 << 20).unwrap();
    fill(&producer, block, 1);
    fixture.allocator.free_on(block, &producer).unwrap();
    fixture.allocator.add_stream_dependency(&consumer, &producer).unwrap();
    let (again, calls) = calls_of(|| fixture.allocator.allocate_for_stream(&consumer, 1 << 20).unwrap());
    assert_eq!(again.address(), block.address());
    assert_eq!(count(&calls, "cuEventRecord") + count(&calls, "cuStreamWaitEvent"), 0, "{calls:?}");
    fill(&consumer, again, 2);
    producer.synchronize().unwrap();
    assert!(fixture.allocator.dependencies_satisfied(&consumer));
    fixture.allocator.clear_dependencies(&consumer);
    assert!(fixture.allocator.dependencies_satisfied(&consumer), "nothing is left to wait for");
    consumer.synchronize().unwrap();
    drop((producer, consumer));
    fixture.finish();
}

#[test]
fn a_dependency_that_is_in_flight_is_not_satisfied() {
    let fixture = Fixture::new();
    let (producer, consumer) = (fixture.stream(), fixture.stream());
    let block = fixture.allocator.allocate_for_stream(&producer, 9000).unwrap();
    let gate = Gate::before(fixture.device(), &[&producer]);
    fill(&producer, block, 1);
    fixture.allocator.add_stream_dependency(&consumer, &producer).unwrap();
    assert!(!fixture.allocator.dependencies_satisfied(&consumer));
    gate.open();
    producer.synchronize().unwrap();
    assert!(fixture.allocator.dependencies_satisfied(&consumer));
    drop((producer, consumer));
    fixture.finish();
}

#[test]
fn event_dependency_orders_work_and_lasts_until_the_event() {
    let fixture = Fixture::new();
    let (producer, consumer) = (fixture.stream(), fixture.stream());
    let event = CudaEvent::new(fixture.device()).unwrap();
    fixture.allocator.add_event_dependency(&consumer, &event).unwrap();
    assert!(fixture.allocator.dependencies_satisfied(&consumer), "it was never recorded");
    let gate = Gate::before(fixture.device(), &[&producer]);
    event.record(&producer).unwrap();
    fixture.allocator.add_event_dependency(&consumer, &event).unwrap();
    assert!(!fixture.allocator.dependencies_satisfied(&consumer));
    let after = consumer.fence().unwrap();
    assert!(!after.is_complete());
    gate.open();
    after.wait().unwrap();
    assert!(fixture.allocator.dependencies_satisfied(&consumer));

    let gate = Gate::before(fixture.device(), &[&producer]);
    event.record(&producer).unwrap();
    fixture.allocator.add_event_dependency(&consumer, &event).unwrap();
    assert!(!fixture.allocator.dependencies_satisfied(&consumer), "the second record is another dependency");
    fixture.allocator.clear_dependencies(&consumer);
    assert!(fixture.allocator.dependencies_satisfied(&consumer));
    gate.open();
    consumer.synchronize().unwrap();
    drop((producer, consumer, event, after));
    fixture.finish();
}

#[test]
fn event_dependency_is_not_satisfied_by_a_later_record() {
    let fixture = Fixture::new();
    let [producer, consumer, idle] = [(); 3].map(|()| fixture.stream());
    let event = CudaEvent::new(fixture.device()).unwrap();
    let gate = Gate::before(fixture.device(), &[&producer]);
    event.record(&producer).unwrap();
    fixture.allocator.add_event_dependency(&consumer, &event).unwrap();
    event.record(&idle).unwrap();
    event.synchronize().unwrap();
    assert!(!fixture.allocator.dependencies_satisfied(&consumer));
    gate.open();
    consumer.synchronize().unwrap();
    assert!(fixture.allocator.dependencies_satisfied(&consumer));
    drop((producer, consumer, idle, event));
    fixture.finish();
}

#[test]
fn dependency_on_an_event_of_a_capture_is_refused_and_never_waited_for() {
    crate::support::gate::limited(|| {
        let fixture = Fixture::new();
        let [captured, consumer] = [(); 2].map(|()| fixture.stream());
        let [event, join] = [(); 2].map(|()| CudaEvent::new(fixture.device()).unwrap());
        drop(fixture.allocator.allocate_buffer(&consumer, 1000).unwrap());
        // SAFETY: what else is enqueued on the streams becomes part of the capture.
        let capture = unsafe { Capture::begin(&captured, CaptureMode::Relaxed) }.unwrap();
        event.record(&captured).unwrap();
        let refused = fixture.allocator.add_event_dependency(&consumer, &event);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy);
        join.record(&consumer).unwrap();
        captured.wait_event(&join).unwrap();
        drop(capture.end().unwrap());
        assert!(fixture.allocator.dependencies_satisfied(&consumer));
        fixture.allocator.drain().unwrap();
        drop((captured, consumer, event, join));
        fixture.finish();
    });
}

#[test]
fn block_with_a_recorded_use_is_reused_after_that_use() {
    let fixture = tight();
    let (own, user) = (fixture.stream(), fixture.stream());
    let back = fixture.setup.pinned(&vec![0; 1 << 20]);
    for round in 0..10_u8 {
        let block = fixture.allocator.allocate_for_stream(&own, 1 << 20).unwrap();
        fill(&own, block, round);
        fixture.allocator.add_stream_dependency(&user, &own).unwrap();
        read_back(&user, block, &back);
        fixture.allocator.record_use(block, &user).unwrap();
        fixture.allocator.free_on(block, &own).unwrap();
        // There is no other memory, so this block waits for the recorded copy.
        let again = fixture.allocator.allocate_for_stream(&own, 1 << 20).unwrap();
        assert_eq!(again.address(), block.address());
        fill(&own, again, 0xFF);
        fixture.allocator.free_on(again, &own).unwrap();
        user.synchronize().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == round), "round {round}");
    }
    own.synchronize().unwrap();
    drop((own, user, back));
    fixture.finish();
}

#[test]
fn blocks_of_several_streams_merge_after_all_their_work() {
    let fixture = tight();
    let streams: Vec<_> = (0..4).map(|_| fixture.stream()).collect();
    for round in 0..5_u8 {
        let blocks: Vec<_> = streams
            .iter()
            .map(|stream| fixture.allocator.allocate_for_stream(stream, 256 << 10).unwrap())
            .collect();
        for (stream, block) in streams.iter().zip(&blocks) {
            fill(stream, *block, round);
            fixture.allocator.free_on(*block, stream).unwrap();
        }
        let last = &streams[usize::from(round) % 4];
        let whole = fixture.allocator.allocate_for_stream(last, 1 << 20).unwrap();
        fill(last, whole, 0xEE);
        fixture.allocator.free_on(whole, last).unwrap();
    }
    assert!(fixture.allocator.statistics().served.gathered > 0);
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    drop(streams);
    fixture.finish();
}

#[test]
fn dropped_streams_memory_is_reused_after_its_work() {
    let fixture = tight();
    let next = fixture.stream();
    let back = fixture.setup.pinned(&vec![0; 512 << 10]);
    for round in 0..10_u8 {
        let gone = fixture.stream();
        let live = fixture.allocator.allocate_for_stream(&gone, 256 << 10).unwrap();
        let freed = fixture.allocator.allocate_for_stream(&gone, 512 << 10).unwrap();
        fill(&gone, freed, round);
        read_back(&gone, freed, &back);
        fixture.allocator.free_on(freed, &gone).unwrap();
        drop(gone);
        // Only the memory of the dropped stream is large enough.
        let again = fixture.allocator.allocate_for_stream(&next, 512 << 10).unwrap();
        fill(&next, again, 0xAA);
        next.synchronize().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == round), "round {round}");
        fixture.allocator.free_on(again, &next).unwrap();
        assert_eq!(fixture.allocator.statistics().live_blocks, 1, "a live block outlives its stream");
        fixture.allocator.free(live.address()).unwrap();
    }
    // The whole region is available again as one block.
    let whole = fixture.allocator.allocate_for_stream(&next, 1 << 20).unwrap();
    fixture.allocator.free_on(whole, &next).unwrap();
    assert!(fixture.allocator.statistics().streams <= 2, "dropped streams leave nothing");
    drop((next, back));
    fixture.finish();
}

#[test]
fn a_stream_that_was_released_ends_with_its_last_handle() {
    let fixture = Fixture::new();
    let (own, user) = (fixture.stream(), fixture.stream());
    let block = fixture.allocator.allocate_for_stream(&own, 1000).unwrap();
    fill(&user, block, 1);
    fixture.allocator.record_use(block, &user).unwrap();
    fixture.allocator.add_stream_dependency(&own, &user).unwrap();
    fixture.allocator.free_on(block, &own).unwrap();
    fixture.allocator.release_stream(&user).unwrap();
    let ((), calls) = calls_of(|| drop(user));
    assert_eq!(count(&calls, "cuStreamDestroy_v2"), 1, "{calls:?}");
    drop(own);
    fixture.finish();
}

#[test]
fn released_user_that_is_used_again_is_waited_for() {
    // The use is recorded again, or the block is freed on its stream.
    released_and_used_again(|allocator, block, own, user| {
        allocator.record_use(block, user).unwrap();
        allocator.free_on(block, own).unwrap();
    });
    released_and_used_again(|allocator, block, _, user| allocator.free_on(block, user).unwrap());
}

fn released_and_used_again(
    free: impl FnOnce(&StreamOrderedAllocator, StreamBlock, &CudaStream, &CudaStream),
) {
    let fixture = tight();
    let (own, user) = (fixture.stream(), fixture.stream());
    let back = fixture.setup.pinned(&vec![0; 1 << 20]);
    let block = fixture.allocator.allocate_for_stream(&own, 1 << 20).unwrap();
    fill(&own, block, 7);
    own.synchronize().unwrap();
    fixture.allocator.record_use(block, &user).unwrap();
    fixture.allocator.release_stream(&user).unwrap();
    let gate = Gate::before(fixture.device(), &[&user]);
    read_back(&user, block, &back);
    free(&fixture.allocator, block, &own, &user);
    let again = fixture.allocator.allocate_for_stream(&own, 1 << 20).unwrap();
    assert_eq!(again.address(), block.address());
    fill(&own, again, 0xFF);
    // Meanwhile the device has time for other work.
    let (other, there) = (fixture.stream(), fixture.setup.device(1 << 20));
    for value in 0..20 {
        other.memset_async(&there, Pattern::U8(value)).wait().unwrap();
        assert!(!own.is_ready().unwrap(), "it waits for the copy, which waits for the gate");
    }
    gate.open();
    own.synchronize().unwrap();
    user.synchronize().unwrap();
    assert!(back.read().unwrap().iter().all(|byte| *byte == 7));
    fixture.allocator.free_on(again, &own).unwrap();
    drop((own, user, other, back, there));
    fixture.finish();
}

#[test]
fn memory_of_short_lived_streams_is_reused_by_others() {
    watched(come_and_go);
}

fn come_and_go() {
    let fixture = Fixture::new();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let fixture = &fixture;
            scope.spawn(move || {
                let back = fixture.setup.pinned(&[0; 50_000]);
                let mut left = Vec::new();
                for round in 0..40_u8 {
                    let stream = fixture.stream();
                    let value = thread.wrapping_mul(40) + round;
                    let (block, kept) = (
                        fixture.allocator.allocate_for_stream(&stream, 50_000).unwrap(),
                        fixture.allocator.allocate_for_stream(&stream, 3000).unwrap(),
                    );
                    fill(&stream, block, value);
                    if round % 4 == 0 {
                        read_back(&stream, block, &back);
                    }
                    fixture.allocator.free_on(block, &stream).unwrap();
                    if round % 4 == 0 {
                        stream.synchronize().unwrap();
                        assert!(back.read().unwrap().iter().all(|byte| *byte == value), "another's bytes");
                    }
                    let last = fixture.allocator.allocate_buffer(&stream, 20_000).unwrap();
                    drop(stream.memset_async(&last, transload_core::Pattern::U8(value)));
                    // The stream is dropped here, usually with work in flight.
                    left.push(kept);
                }
                for block in left {
                    fixture.allocator.free(block).unwrap();
                }
            });
        }
    });
    let numbers = fixture.allocator.statistics();
    assert_eq!((numbers.live_blocks, numbers.in_use), (0, 0));
    assert!(numbers.reserved <= 8 << 20, "{} bytes for dropped streams", numbers.reserved);
    fixture.finish();
}

#[test]
fn allocator_dropped_in_flight_frees_after_completion() {
    let fixture = Fixture::new();
    let (stream, gone) = (fixture.stream(), fixture.stream());
    let live = fixture.allocator.allocate_for_stream(&stream, 3 << 20).unwrap();
    let other = fixture.allocator.allocate_for_stream(&gone, 3 << 20).unwrap();
    fill(&stream, live, 1);
    fill(&gone, other, 1);
    drop(gone);
    // Nothing was waited for or freed yet: `finish` drops the allocator first.
    drop(stream);
    fixture.finish();
}
