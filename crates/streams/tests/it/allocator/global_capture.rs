//! While someone captures a graph in global mode, allocating, freeing, growing and reuse across streams leave it valid; memory
//! of the captured stream itself is left alone.

use std::sync::Barrier;

use transload_cuda_sys::{AsStream, Capture, CaptureMode, DriverError, Stream, StreamOptions, check, ffi};
use transload_streams::CudaStream;

use crate::{
    allocator::Bed,
    allocator::across_streams::{fill, read_back},
};

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
const GLOBAL: u32 = 0;

#[test]
fn allocation_leaves_a_capture_valid_and_the_captured_streams_memory_alone() {
    let bed = Bed::new();
    let (captured, one, two) = (bed.stream(), bed.stream(), bed.stream());
    let of_captured = bed.allocator.allocate_for_stream(&captured, 1 << 20).unwrap();
    bed.allocator.free_for_stream(of_captured, &captured).unwrap();
    let back = bed.setup.pinned(&vec![0; 1 << 20]);
    let (begun, done) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let capture = scope.spawn(|| -> Result<(), DriverError> {
            let _bound = captured.context().enter()?;
            // SAFETY: the stream is live and idle.
            let began = unsafe { ffi::cuStreamBeginCapture_v2(captured.as_raw(), GLOBAL) };
            begun.wait();
            done.wait();
            let mut graph = std::ptr::null_mut();
            // SAFETY: this thread began the capture; the out pointer is valid.
            let ended = unsafe { ffi::cuStreamEndCapture(captured.as_raw(), &mut graph) };
            if !graph.is_null() {
                // SAFETY: the graph was just made and nothing uses it.
                unsafe { ffi::cuGraphDestroy(graph) };
            }
            check("cuStreamBeginCapture_v2", began).and(check("cuStreamEndCapture", ended))
        });
        begun.wait();
        let ours = || -> transload_core::Result<()> {
            let block = bed.allocator.allocate_for_stream(&one, 1 << 20)?;
            fill(&one, block, 1);
            bed.allocator.free_for_stream(block, &one)?;
            let block = bed.allocator.allocate_for_stream(&two, 1 << 20)?;
            fill(&two, block, 2);
            read_back(&two, block, &back);
            let large = bed.allocator.allocate_for_stream(&two, 50 << 20)?;
            bed.allocator.free_for_stream(large, &two)?;
            bed.allocator.free_for_stream(block, &two)?;
            two.synchronize()?;
            one.synchronize()?;
            bed.allocator.trim().map(|_| ())
        };
        let outcome = ours();
        done.wait();
        capture.join().unwrap().expect("the capture is valid to its end");
        outcome.unwrap();
    });
    assert!(back.read().unwrap().iter().all(|byte| *byte == 2));
    drop((captured, one, two, back));
    bed.finish();
}

#[test]
fn an_allocator_of_the_legacy_stream_leaves_a_capture_of_a_stream_alone_that_it_would_wait_for() {
    let bed = Bed::new();
    let legacy = CudaStream::legacy_default(&bed.setup.device).unwrap();
    let block = bed.allocator.allocate_for_stream(&legacy, 1 << 20).unwrap();
    bed.allocator.free_for_stream(block, &legacy).unwrap();
    let blocking = StreamOptions { priority: 0, blocking: true };
    let theirs = Stream::new(bed.setup.device.context().unwrap(), blocking).unwrap();
    // SAFETY: nobody else uses the stream.
    let capture = unsafe { Capture::begin(&theirs, CaptureMode::Relaxed) }.unwrap();
    bed.allocator.trim().unwrap();
    capture.end().expect("the capture is valid");
    drop((legacy, theirs));
    bed.finish();
}
