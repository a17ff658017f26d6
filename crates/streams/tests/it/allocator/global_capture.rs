//! A graph capture in global mode stays valid while this library allocates, frees, grows and reuses across streams, and the
//! captured stream's memory is not used.

use std::sync::Barrier;

use transload_cuda_sys::{AsStream, Capture, CaptureMode, DriverError, Stream, StreamOptions, check, ffi};
use transload_streams::CudaStream;

use crate::{
    allocator::Fixture,
    allocator::across_streams::{fill, read_back},
};

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
const GLOBAL: u32 = 0;

#[test]
fn allocation_leaves_a_global_capture_valid() {
    let fixture = Fixture::new();
    let (captured, one, two) = (fixture.stream(), fixture.stream(), fixture.stream());
    let of_captured = fixture.allocator.allocate_for_stream(&captured, 1 << 20).unwrap();
    fixture.allocator.free_on(of_captured, &captured).unwrap();
    let back = fixture.setup.pinned(&vec![0; 1 << 20]);
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
            let block = fixture.allocator.allocate_for_stream(&one, 1 << 20)?;
            fill(&one, block, 1);
            fixture.allocator.free_on(block, &one)?;
            let block = fixture.allocator.allocate_for_stream(&two, 1 << 20)?;
            fill(&two, block, 2);
            read_back(&two, block, &back);
            let large = fixture.allocator.allocate_for_stream(&two, 50 << 20)?;
            fixture.allocator.free_on(large, &two)?;
            fixture.allocator.free_on(block, &two)?;
            two.synchronize()?;
            one.synchronize()?;
            fixture.allocator.trim().map(|_| ())
        };
        let outcome = ours();
        done.wait();
        capture.join().unwrap().expect("the capture is valid to its end");
        outcome.unwrap();
    });
    assert!(back.read().unwrap().iter().all(|byte| *byte == 2));
    drop((captured, one, two, back));
    fixture.finish();
}

#[test]
fn legacy_stream_allocator_leaves_a_blocking_capture_valid() {
    let fixture = Fixture::new();
    let legacy = CudaStream::legacy_default(&fixture.setup.device).unwrap();
    let block = fixture.allocator.allocate_for_stream(&legacy, 1 << 20).unwrap();
    fixture.allocator.free_on(block, &legacy).unwrap();
    let blocking = StreamOptions { priority: 0, blocking: true };
    let theirs = Stream::new(fixture.setup.device.context().unwrap(), blocking).unwrap();
    // SAFETY: the stream has no other user.
    let capture = unsafe { Capture::begin(&theirs, CaptureMode::Relaxed) }.unwrap();
    fixture.allocator.trim().unwrap();
    capture.end().expect("the capture is valid");
    drop((legacy, theirs));
    fixture.finish();
}
