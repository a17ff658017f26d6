//! The allocator beside a capture of one of its streams: neither the capture nor the stream is harmed, nor what waits for it.

use std::sync::Arc;

use transload_core::{ErrorKind, MemoryKind, Pattern};
use transload_cuda_sim::SimDevice;
use transload_cuda_sys::{Capture, CaptureMode};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
use transload_streams::{CudaStream, StreamOrderedAllocator};

use super::{allocator_races::allocator, builder, within};

const MIB: usize = 1 << 20;

fn bed(sim: &SimDevice) -> (CudaDevice, Arc<CudaMemoryManager>) {
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
    (device, memory)
}

#[test]
fn a_block_whose_recorded_user_is_captured_is_parked_until_the_capture_ends() {
    within(|| {
        let sim = builder().record_accesses(true).build();
        let (device, memory) = bed(&sim);
        let allocator = allocator(&memory);
        let (own, captured) = (CudaStream::new(&device).unwrap(), CudaStream::new(&device).unwrap());
        let there = memory.allocate(MemoryKind::Device, MIB).unwrap();
        let early = captured.memset_async(&there, Pattern::U8(1));
        let block = allocator.allocate_for_stream(&own, MIB).unwrap();
        allocator.record_use(block, &captured).unwrap();
        // SAFETY: what the allocator does with a captured stream is what the test is about; nothing is taken to have run.
        let capture = unsafe { Capture::begin(&captured, CaptureMode::Relaxed) }.unwrap();
        allocator.free_for_stream(block, &own).unwrap();
        let refused = allocator.allocate_for_stream(&own, MIB).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
        capture.end().expect("the capture is valid to its end");
        captured.synchronize().unwrap();
        assert!(early.is_over());
        let again = allocator.allocate_for_stream(&own, MIB).unwrap();
        assert_eq!(again.address(), block.address());
        captured.memset_async(&there, Pattern::U8(2)).wait().expect("the stream is well");
        drop((own, captured, there));
        drop(allocator);
        memory.drain().unwrap();
        assert!(memory.ledger().is_empty(), "{}", memory.ledger());
    });
}

#[test]
fn what_needs_a_fence_of_a_captured_stream_is_refused_and_pulls_no_other_stream_into_the_capture() {
    within(|| {
        let sim = builder().build();
        let (device, memory) = bed(&sim);
        let allocator = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Device).unwrap());
        let (captured, other) = (CudaStream::new(&device).unwrap(), CudaStream::new(&device).unwrap());
        let there = memory.allocate(MemoryKind::Device, MIB).unwrap();
        let block = allocator.allocate_for_stream(&captured, MIB).unwrap();
        allocator.free_for_stream(block, &captured).unwrap();
        // SAFETY: what the allocator does with a captured stream is what the test is about; nothing is taken to have run.
        let capture = unsafe { Capture::begin(&captured, CaptureMode::Relaxed) }.unwrap();
        let kinds = [
            allocator.allocate_buffer(&captured, MIB).map(drop),
            allocator.add_stream_dependency(&other, &captured),
            allocator.release_stream(&captured),
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
        let within = allocator.allocate_for_stream(&captured, MIB).unwrap();
        assert_eq!(within.address(), block.address());
        allocator.trim().unwrap();
        other.memset_async(&there, Pattern::U8(1)).wait().unwrap();
        other.synchronize().expect("the other stream is no part of the capture");
        capture.end().expect("the capture is valid to its end");
        allocator.free_for_stream(within, &captured).unwrap();
        captured.synchronize().unwrap();
        drop(allocator.allocate_buffer(&captured, MIB).unwrap());
    });
}

#[test]
fn fences_from_before_a_capture_are_asked_and_waited_for_without_harm_to_it() {
    within(|| {
        let sim = builder().build();
        let (device, memory) = bed(&sim);
        let (captured, other) = (CudaStream::new(&device).unwrap(), CudaStream::new(&device).unwrap());
        let there = memory.allocate(MemoryKind::Device, MIB).unwrap();
        let early = captured.memset_async(&there, Pattern::U8(1));
        // SAFETY: what the allocator does with a captured stream is what the test is about; nothing is taken to have run.
        let capture = unsafe { Capture::begin(&captured, CaptureMode::Relaxed) }.unwrap();
        let behind = other.memset_async(&there, Pattern::U8(2));
        let _asked = early.is_over();
        early.wait().unwrap();
        behind.wait().unwrap();
        capture.end().expect("the capture is valid to its end");
    });
}

#[test]
fn an_answer_about_a_capture_says_nothing_of_the_work_and_breaks_no_stream() {
    const CAPTURED_EVENT: u32 = 907;
    within(|| {
        for call in ["cuEventQuery", "cuEventSynchronize"] {
            let sim = builder().record_accesses(true).build();
            let (device, memory) = bed(&sim);
            let stream = CudaStream::new(&device).unwrap();
            let there = memory.allocate(MemoryKind::Device, MIB).unwrap();
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
