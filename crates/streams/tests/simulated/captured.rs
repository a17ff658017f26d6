//! What a driver's answer about a capture means for a stream.

use transload_core::{ErrorKind, MemoryKind, Pattern, StreamPriority};
use transload_cuda_sys::{AsStream, Capture, CaptureMode, Stream, StreamOptions};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;

use super::{
    allocator_races::{allocator, bed, fill},
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
            let _asked = fence.is_over();
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
