//! The allocator beside a capture of one of its streams: neither the capture nor the stream is harmed, nor what waits for it.

use std::time::Duration;

use transload_core::{ErrorKind, MemoryKind, Pattern};
use transload_cuda_sys::{Capture, CaptureMode};
use transload_streams::StreamOrderedAllocator;

use crate::{
    allocator::{Bed, watched},
    support::gate::within,
};

const MIB: usize = 1 << 20;

#[test]
fn a_block_whose_recorded_user_is_captured_is_parked_until_the_capture_ends() {
    watched(|| {
        let bed = Bed::with(MemoryKind::Device, |resource| {
            let builder = StreamOrderedAllocator::builder(resource).segments(MIB as u64, MIB as u64);
            builder.limit(MIB as u64).build().unwrap()
        });
        let (own, captured) = (bed.stream(), bed.stream());
        let there = bed.memory.allocate(MemoryKind::Device, MIB).unwrap();
        let early = captured.memset_async(&there, Pattern::U8(1));
        let block = bed.allocator.allocate_for_stream(&own, MIB).unwrap();
        bed.allocator.record_use(block, &captured).unwrap();
        // SAFETY: what the library does with a captured stream is what the test is about; nothing is taken to have run.
        let capture = unsafe { Capture::begin(&captured, CaptureMode::Relaxed) }.unwrap();
        bed.allocator.free_for_stream(block, &own).unwrap();
        let refused = bed.allocator.allocate_for_stream(&own, MIB).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
        capture.end().expect("the capture is valid to its end");
        captured.synchronize().unwrap();
        assert!(early.is_complete());
        let again = bed.allocator.allocate_for_stream(&own, MIB).unwrap();
        assert_eq!(again.address(), block.address());
        captured.memset_async(&there, Pattern::U8(2)).wait().expect("the stream is well");
        drop((own, captured, there, early));
        bed.finish();
    });
}

#[test]
fn what_needs_a_fence_of_a_captured_stream_is_refused_and_pulls_no_other_stream_into_the_capture() {
    watched(|| {
        let bed = Bed::new();
        let (captured, other) = (bed.stream(), bed.stream());
        let there = bed.memory.allocate(MemoryKind::Device, MIB).unwrap();
        let block = bed.allocator.allocate_for_stream(&captured, MIB).unwrap();
        bed.allocator.free_for_stream(block, &captured).unwrap();
        // SAFETY: what the library does with a captured stream is what the test is about; nothing is taken to have run.
        let capture = unsafe { Capture::begin(&captured, CaptureMode::Relaxed) }.unwrap();
        let kinds = [
            bed.allocator.allocate_buffer(&captured, MIB).map(drop),
            bed.allocator.add_stream_dependency(&other, &captured),
            bed.allocator.release_stream(&captured),
            captured.fence().map(drop),
            captured.synchronize(),
            captured.add_callback(|_| {}),
            captured.memset_async(&there, Pattern::U8(1)).wait().map(drop),
        ];
        for (index, refused) in kinds.into_iter().enumerate() {
            let error = refused.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Busy, "{index}: {error}");
        }
        assert!(!captured.is_ready().unwrap());
        // The raw layer's own free blocks serve the captured stream.
        let within = bed.allocator.allocate_for_stream(&captured, MIB).unwrap();
        assert_eq!(within.address(), block.address());
        bed.allocator.trim().unwrap();
        other.memset_async(&there, Pattern::U8(1)).wait().unwrap();
        other.synchronize().expect("the other stream is no part of the capture");
        capture.end().expect("the capture is valid to its end");
        bed.allocator.free_for_stream(within, &captured).unwrap();
        captured.synchronize().unwrap();
        drop(bed.allocator.allocate_buffer(&captured, MIB).unwrap());
        drop((captured, other, there));
        bed.finish();
    });
}

#[test]
fn fences_from_before_a_capture_are_asked_and_waited_for_without_harm_to_it() {
    watched(|| {
        let bed = Bed::new();
        let (captured, other) = (bed.stream(), bed.stream());
        let there = bed.memory.allocate(MemoryKind::Device, MIB).unwrap();
        let early = captured.memset_async(&there, Pattern::U8(1));
        // SAFETY: what the library does with a captured stream is what the test is about; nothing is taken to have run.
        let capture = unsafe { Capture::begin(&captured, CaptureMode::Relaxed) }.unwrap();
        let behind = other.memset_async(&there, Pattern::U8(2));
        let _asked = early.is_complete();
        early.wait().unwrap();
        behind.wait().unwrap();
        capture.end().expect("the capture is valid to its end");
        drop((captured, other, there));
        bed.finish();
    });
}

#[test]
fn drain_skips_segments_behind_an_open_capture() {
    within(Duration::from_secs(60), || {
        let bed = Bed::new();
        let captured = bed.stream();
        let block = bed.allocator.allocate_for_stream(&captured, MIB).unwrap();
        bed.allocator.free_for_stream(block, &captured).unwrap();
        // SAFETY: what the library does with a captured stream is what the test is about; nothing is taken to have run.
        let capture = unsafe { Capture::begin(&captured, CaptureMode::Relaxed) }.unwrap();
        let Bed { setup, memory, allocator } = bed;
        drop(allocator);
        // From several threads at once, the capturing one among them: none waits for another.
        std::thread::scope(|scope| {
            let others = [(); 3].map(|()| scope.spawn(|| memory.drain()));
            let here = memory.drain();
            for refused in others.into_iter().map(|other| other.join().unwrap()).chain([here]) {
                let error = refused.expect_err("memory behind a capture is still there");
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                assert!(error.to_string().contains("captured"), "{error}");
            }
        });
        assert!(!memory.resource_counts().is_empty(), "the segment is kept");
        capture.end().expect("the capture is valid to its end");
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
        drop((captured, memory));
        setup.finish();
    });
}
