//! What a driver's answer about a capture means for a stream.

use std::sync::Arc;

use transload_core::{ErrorKind, MemoryKind, Pattern, StreamPriority};
use transload_cuda_sim::SimDevice;
use transload_cuda_sys::{AsStream, Capture, CaptureMode, Stream, StreamOptions};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource, MemoryResource};
use transload_streams::{CudaStream, StreamOrderedAllocator};

use crate::{
    allocator::races::{allocator, bed, fill},
    builder, within,
};

const MIB: usize = 1 << 20;

#[test]
fn an_answer_about_a_capture_says_nothing_of_the_work_and_breaks_no_stream() {
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
            fence.wait().expect("the stream itself tells");
            assert!(stream.is_ready().unwrap(), "{call}: reached before it was over");
            filled.wait().unwrap();
            stream.memset_async(&there, Pattern::U8(2)).wait().unwrap();
        }
    });
}

#[test]
fn the_end_of_a_stream_that_someone_captures_breaks_no_capture_and_keeps_its_memory_until_that_is_over() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (device, memory) = bed(&sim);
        let allocator = allocator(&memory);
        let context = device.context().unwrap();
        let other = CudaStream::new(&device).unwrap();
        let theirs = Stream::new(context, StreamOptions { priority: 0, blocking: true }).unwrap();
        // SAFETY: it outlives ours and the allocator.
        let same = unsafe { CudaStream::from_raw(&device, theirs.as_raw(), StreamPriority::Normal) }.unwrap();
        // It waits for theirs, so it is nobody's to ask either.
        let legacy = CudaStream::legacy_default(&device).unwrap();
        let own = CudaStream::new(&device).unwrap();
        // SAFETY: it is used while the stream is captured only.
        let owns = unsafe { Stream::from_raw(context, own.as_raw()) };
        let there = memory.allocate(MemoryKind::Device, 4096).unwrap();
        for (stream, captured) in [(same, &theirs), (legacy, &theirs), (own, &owns)] {
            // By a kernel of ours, which the stream's end asks about.
            let (address, pattern) = (there.device_address().unwrap(), Pattern::U64(0x0102_0304_0506_0708));
            // SAFETY: the memory is alive to the end of the test.
            unsafe { stream.memset_raw_async(address, pattern, there.len()) }.unwrap();
            let block = allocator.allocate_for_stream(&stream, MIB).unwrap();
            (0..20).for_each(|_| fill(&stream, block));
            allocator.free_for_stream(block, &stream).unwrap();
            // SAFETY: what ours does with a captured stream is what the test is about; nothing is taken to have run.
            let capture = unsafe { Capture::begin(captured, CaptureMode::Relaxed) }.unwrap();
            drop(stream);
            let refused = allocator.allocate_for_stream(&other, MIB).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
            allocator.drain().unwrap();
            capture.end().expect("the capture is valid to its end");
            let block = allocator.allocate_for_stream(&other, MIB).unwrap();
            fill(&other, block);
            allocator.free_for_stream(block, &other).unwrap();
            allocator.drain().unwrap();
            assert_eq!(allocator.statistics().reserved, 0);
        }
    });
}

/// A stream of someone's, and ours of the same handle, which has freed a block of the allocator that its work still uses.
fn ending(
    sim: &SimDevice,
) -> (CudaDevice, Arc<CudaMemoryManager>, StreamOrderedAllocator, Stream, CudaStream) {
    let (device, memory) = bed(sim);
    let allocator = allocator(&memory);
    let options = StreamOptions { priority: 0, blocking: true };
    let theirs = Stream::new(device.context().unwrap(), options).unwrap();
    // SAFETY: it outlives ours and the allocator.
    let stream = unsafe { CudaStream::from_raw(&device, theirs.as_raw(), StreamPriority::Normal) }.unwrap();
    let block = allocator.allocate_for_stream(&stream, MIB).unwrap();
    (0..20).for_each(|_| fill(&stream, block));
    allocator.free_for_stream(block, &stream).unwrap();
    (device, memory, allocator, theirs, stream)
}

fn begin(theirs: &Stream) -> Capture<'_, Stream> {
    // SAFETY: what ours does with a captured stream is what the test is about; nothing is taken to have run.
    unsafe { Capture::begin(theirs, CaptureMode::Relaxed) }.unwrap()
}

#[test]
fn memory_behind_a_captured_streams_end_keeps_nobody_who_trims_waiting_for_the_capture() {
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
fn a_capture_that_begins_while_a_stream_ends_keeps_its_memory_until_that_is_over() {
    const INVALID_VALUE: u32 = 1;
    const UNKNOWN: u32 = 999;
    within(|| {
        for is_valid in [true, false] {
            let sim = builder().record_accesses(true).checked();
            let (_device, memory, allocator, theirs, stream) = ending(&sim);
            let capture = begin(&theirs);
            // As if it had begun behind the question whether there is one, and before the event is recorded.
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
fn an_end_that_no_event_can_be_recorded_for_is_waited_for_and_no_capture() {
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
