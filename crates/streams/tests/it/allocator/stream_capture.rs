//! The allocator while one of its streams is captured: capture, stream and waiters stay unharmed.

use std::time::Duration;

use transload_core::{ErrorKind, MemoryKind, Pattern};
use transload_cuda_sys::{Capture, CaptureMode};
use transload_streams::StreamOrderedAllocator;

use crate::{
    allocator::{Fixture, watched},
    support::gate::within,
};

const MIB: usize = 1 << 20;

#[test]
fn block_used_by_a_captured_stream_waits_for_its_end() {
    watched(|| {
        let fixture = Fixture::with(MemoryKind::Device, |resource| {
            let builder = StreamOrderedAllocator::builder(resource).segments(MIB as u64, MIB as u64);
            builder.limit(MIB as u64).build().unwrap()
        });
        let (own, captured) = (fixture.stream(), fixture.stream());
        let there = fixture.memory.allocate(MemoryKind::Device, MIB).unwrap();
        let early = captured.memset_async(&there, Pattern::U8(1));
        let block = fixture.allocator.allocate_for_stream(&own, MIB).unwrap();
        fixture.allocator.record_use(block, &captured).unwrap();
        // SAFETY: the test checks what the library does with a captured stream; it relies on no captured work.
        let capture = unsafe { Capture::begin(&captured, CaptureMode::Relaxed) }.unwrap();
        fixture.allocator.free_on(block, &own).unwrap();
        let refused = fixture.allocator.allocate_for_stream(&own, MIB).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
        capture.end().expect("the capture is valid to its end");
        captured.synchronize().unwrap();
        assert!(early.is_complete());
        let again = fixture.allocator.allocate_for_stream(&own, MIB).unwrap();
        assert_eq!(again.address(), block.address());
        captured.memset_async(&there, Pattern::U8(2)).wait().expect("the stream is well");
        drop((own, captured, there, early));
        fixture.finish();
    });
}

#[test]
fn fence_of_a_captured_stream_is_refused() {
    watched(|| {
        let fixture = Fixture::new();
        let (captured, other) = (fixture.stream(), fixture.stream());
        let there = fixture.memory.allocate(MemoryKind::Device, MIB).unwrap();
        let block = fixture.allocator.allocate_for_stream(&captured, MIB).unwrap();
        fixture.allocator.free_on(block, &captured).unwrap();
        // SAFETY: the test checks what the library does with a captured stream; it relies on no captured work.
        let capture = unsafe { Capture::begin(&captured, CaptureMode::Relaxed) }.unwrap();
        let kinds = [
            fixture.allocator.allocate_buffer(&captured, MIB).map(drop),
            fixture.allocator.add_stream_dependency(&other, &captured),
            fixture.allocator.add_stream_dependency(&captured, &other),
            fixture.allocator.release_stream(&captured),
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
        // The captured stream reuses its own free blocks.
        let within = fixture.allocator.allocate_for_stream(&captured, MIB).unwrap();
        assert_eq!(within.address(), block.address());
        fixture.allocator.trim().unwrap();
        other.memset_async(&there, Pattern::U8(1)).wait().unwrap();
        other.synchronize().expect("the other stream is no part of the capture");
        capture.end().expect("the capture is valid to its end");
        fixture.allocator.free_on(within, &captured).unwrap();
        captured.synchronize().unwrap();
        drop(fixture.allocator.allocate_buffer(&captured, MIB).unwrap());
        drop((captured, other, there));
        fixture.finish();
    });
}

#[test]
fn fences_from_before_a_capture_leave_it_valid() {
    watched(|| {
        let fixture = Fixture::new();
        let (captured, other) = (fixture.stream(), fixture.stream());
        let there = fixture.memory.allocate(MemoryKind::Device, MIB).unwrap();
        let early = captured.memset_async(&there, Pattern::U8(1));
        // SAFETY: the test checks what the library does with a captured stream; it relies on no captured work.
        let capture = unsafe { Capture::begin(&captured, CaptureMode::Relaxed) }.unwrap();
        let behind = other.memset_async(&there, Pattern::U8(2));
        let _asked = early.is_complete();
        early.wait().unwrap();
        behind.wait().unwrap();
        capture.end().expect("the capture is valid to its end");
        drop((captured, other, there));
        fixture.finish();
    });
}

#[test]
fn drain_skips_segments_behind_an_open_capture() {
    within(Duration::from_secs(60), || {
        let fixture = Fixture::new();
        let captured = fixture.stream();
        let block = fixture.allocator.allocate_for_stream(&captured, MIB).unwrap();
        fixture.allocator.free_on(block, &captured).unwrap();
        // SAFETY: the test checks what the library does with a captured stream; it relies on no captured work.
        let capture = unsafe { Capture::begin(&captured, CaptureMode::Relaxed) }.unwrap();
        let Fixture { setup, memory, allocator } = fixture;
        drop(allocator);
        // From several threads, including the capturing one: none waits for another.
        std::thread::scope(|scope| {
            let others = [(); 3].map(|()| scope.spawn(|| memory.drain()));
            let here = memory.drain();
            for refused in others.into_iter().map(|other| other.join().unwrap()).chain([here]) {
                let error = refused.expect_err("memory waiting for a capture is not freed");
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
