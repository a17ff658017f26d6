//! Streams whose driver calls report a capture.

use std::sync::Arc;

use transload_core::{ErrorKind, MemoryKind, Pattern, StreamPriority};
use transload_cuda_sim::SimDevice;
use transload_cuda_sys::{AsStream, Capture, CaptureMode, Stream, StreamOptions};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource, MemoryResource};
use transload_streams::{CudaStream, StreamOrderedAllocator};

use crate::{
    allocator::{allocator, fill, fixture},
    builder, within,
};

const MIB: usize = 1 << 20;

#[test]
fn capture_error_of_a_query_leaves_the_stream_usable() {
    const CAPTURED_EVENT: u32 = 907;
    within(|| {
        for call in ["cuEventQuery", "cuEventSynchronize"] {
            let sim = builder().record_accesses(true).checked();
            let device = CudaDevice::new(sim.ordinal()).unwrap();
            let memory = CudaMemoryManager::new(&device).unwrap();
            let stream = CudaStream::new(&device).unwrap();
            let there = memory.allocate(MemoryKind::Device, 1 << 20).unwrap();
            let filled = stream.memset_async(&there, Pattern::U8(1));
            let fence = stream.fence().unwrap();
            sim.fail_call(Some(call), 1, CAPTURED_EVENT);
            let _asked = fence.is_complete();
            fence.wait().expect("the stream itself reports completion");
            assert!(stream.is_ready().unwrap(), "{call}: reached before completion");
            filled.wait().unwrap();
            stream.memset_async(&there, Pattern::U8(2)).wait().unwrap();
        }
    });
}

#[test]
fn captured_streams_end_keeps_memory_until_the_capture_ends() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (device, memory) = fixture(&sim);
        let allocator = allocator(&memory);
        let context = device.context().unwrap();
        let other = CudaStream::new(&device).unwrap();
        let theirs = Stream::new(context, StreamOptions { priority: 0, blocking: true }).unwrap();
        // SAFETY: it outlives our handle and the allocator.
        let same = unsafe { CudaStream::from_raw(&device, theirs.as_raw(), StreamPriority::Normal) }.unwrap();
        // It waits for their stream, so it must not be queried either.
        let legacy = CudaStream::legacy_default(&device).unwrap();
        let own = CudaStream::new(&device).unwrap();
        // SAFETY: it is used only while the stream is captured.
        let owns = unsafe { Stream::from_raw(context, own.as_raw()) };
        let there = memory.allocate(MemoryKind::Device, 4096).unwrap();
        for (stream, captured) in [(same, &theirs), (legacy, &theirs), (own, &owns)] {
            // By a kernel of the library, which the stream's end queries.
            let (address, pattern) = (there.device_address().unwrap(), Pattern::U64(0x0102_0304_0506_0708));
            // SAFETY: the memory lives to the end of the test.
            unsafe { stream.memset_raw_async(address, pattern, there.len()) }.unwrap();
            let block = allocator.allocate_for_stream(&stream, MIB).unwrap();
            (0..20).for_each(|_| fill(&stream, block));
            allocator.free_on(block, &stream).unwrap();
            // SAFETY: the test checks what our handle does with a captured stream; it relies on no captured work.
            let capture = unsafe { Capture::begin(captured, CaptureMode::Relaxed) }.unwrap();
            drop(stream);
            let refused = allocator.allocate_for_stream(&other, MIB).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
            allocator.drain().unwrap();
            capture.end().expect("the capture is valid to its end");
            let block = allocator.allocate_for_stream(&other, MIB).unwrap();
            fill(&other, block);
            allocator.free_on(block, &other).unwrap();
            allocator.drain().unwrap();
            assert_eq!(allocator.statistics().reserved, 0);
        }
    });
}

/// A foreign stream and our handle of it, which has freed a block of the allocator that the stream's work still uses.
fn ending(
    sim: &SimDevice,
) -> (CudaDevice, Arc<CudaMemoryManager>, StreamOrderedAllocator, Stream, CudaStream) {
    let (device, memory) = fixture(sim);
    let allocator = allocator(&memory);
    let options = StreamOptions { priority: 0, blocking: true };
    let theirs = Stream::new(device.context().unwrap(), options).unwrap();
    // SAFETY: it outlives our handle and the allocator.
    let stream = unsafe { CudaStream::from_raw(&device, theirs.as_raw(), StreamPriority::Normal) }.unwrap();
    let block = allocator.allocate_for_stream(&stream, MIB).unwrap();
    (0..20).for_each(|_| fill(&stream, block));
    allocator.free_on(block, &stream).unwrap();
    (device, memory, allocator, theirs, stream)
}

fn begin(theirs: &Stream) -> Capture<'_, Stream> {
    // SAFETY: the test checks what our handle does with a captured stream; it relies on no captured work.
    unsafe { Capture::begin(theirs, CaptureMode::Relaxed) }.unwrap()
}

#[test]
fn trim_does_not_wait_for_an_open_capture() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (device, memory, allocator, theirs, stream) = ending(&sim);
        let capture = begin(&theirs);
        drop(stream);
        drop(allocator);
        let upstream = CudaResource::new(&memory, MemoryKind::Device).unwrap();
        upstream.trim().unwrap();
        assert!(sim.live_objects().bytes > 0, "it is in use");
        capture.end().expect("the capture is valid to its end");
        upstream.trim().unwrap();
        assert_eq!(sim.live_objects().bytes, 0);
        drop(device);
    });
}

#[test]
fn capture_begun_at_a_streams_end_keeps_its_memory() {
    const INVALID_VALUE: u32 = 1;
    const UNKNOWN: u32 = 999;
    within(|| {
        for is_valid in [true, false] {
            let sim = builder().record_accesses(true).checked();
            let (_device, memory, allocator, theirs, stream) = ending(&sim);
            let capture = begin(&theirs);
            // As if the capture began after the check for one and before the event is recorded.
            sim.fail_call(Some("cuStreamIsCapturing"), 1, INVALID_VALUE);
            if is_valid {
                sim.fail_call(Some("cuStreamQuery"), 1, UNKNOWN);
            }
            drop(stream);
            drop(allocator);
            assert_eq!(memory.drain().unwrap_err().kind(), ErrorKind::Busy);
            assert_eq!(capture.end().is_ok(), is_valid);
            memory.drain().unwrap();
            assert_eq!(sim.live_objects().bytes, 0);
        }
    });
}

#[test]
fn stream_end_without_an_event_waits_but_not_for_captures() {
    const OUT_OF_MEMORY: u32 = 2;
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (_device, memory, allocator, theirs, stream) = ending(&sim);
        let capture = begin(&theirs);
        drop(stream);
        drop(allocator);
        capture.end().unwrap();
        (1..=50).for_each(|nth| sim.fail_call(Some("cuEventCreate"), nth, OUT_OF_MEMORY));
        memory.drain().unwrap();
        assert_eq!(sim.live_objects().bytes, 0);
    });
}
