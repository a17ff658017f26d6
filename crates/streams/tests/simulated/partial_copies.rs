//! Copies of memory that is registered in part, where one of the parts fails.

use std::sync::{Arc, mpsc::channel};

use transload_core::{ErrorKind, MemoryKind, Operation, Pitched, Timing, submit};
use transload_cuda_sys::{Capture, CaptureMode};
use transload_memory::{CudaDevice, CudaMemoryManager, RegistrationCache};
use transload_streams::CudaStream;

use crate::{UNKNOWN, builder, within};

#[path = "../../../memory/tests/it/heap.rs"]
#[allow(dead_code, reason = "shared with the tests of memory")]
pub(crate) mod heap;

const BYTES: usize = 40_000;
/// Another error than that of the copy, which says as little about the work.
const OTHER: u32 = 304;

#[test]
fn when_a_part_fails_the_parts_before_it_are_over_and_nothing_is_in_flight() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
        let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        let ((source, _), there) =
            (heap::heap(BYTES, true), memory.allocate(MemoryKind::Device, BYTES).unwrap());
        drop(cache.register(&source.slice(..10_000).unwrap()).unwrap());
        let rows = Pitched { width: 1000, height: 20, src_pitch: 2000, dst_pitch: 1000 };
        let half = there.slice(..20_000).unwrap();
        let from = source.slice(..39_000).unwrap();
        let operations = [
            Operation::Copy { src: &source, dst: &there },
            Operation::CopyPitched { src: &from, dst: &half, rows },
        ];
        // The thread's first refused copy is tried once more, in the device's context.
        submit(&stream, &operations[0], Timing::Off).unwrap().wait().unwrap();
        for (index, operation) in operations.iter().enumerate() {
            // The whole is refused, then the parts go one by one: the last of these fails.
            let trace = transload_cuda_sys::trace::start();
            submit(&stream, operation, Timing::Off).unwrap().wait().unwrap();
            let calls = trace.calls_of_this_thread();
            let parts = calls.iter().filter(|call| call.name == "cuMemcpyHtoDAsync_v2").count() as u64;
            assert!(parts > 1, "{index}: {parts}");
            drop(trace);
            let trace = transload_cuda_sys::trace::start();
            sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), parts, UNKNOWN);
            assert_eq!(submit(&stream, operation, Timing::Off).unwrap_err().kind(), ErrorKind::Device);
            let calls = trace.calls_of_this_thread();
            let last = calls.iter().rposition(|call| call.name == "cuMemcpyHtoDAsync_v2").unwrap();
            let waited = calls[last..].iter().any(|call| call.name == "cuStreamSynchronize");
            assert!(waited, "{index}: nobody else would wait for the parts before");
            source.try_write().unwrap().fill(3);
        }
        drop((from, half, source, there, cache, stream));
        memory.drain().unwrap();
        drop((memory, device));
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
        assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
    });
}

/// Memory registered in part, and a copy of it that the driver takes in parts only.
#[test]
fn failed_part_during_a_capture_returns_once_the_parts_before_are_complete() {
    within(|| {
        for (synchronize_fails, in_batch) in [(false, false), (true, false), (false, true), (true, true)] {
            let sim = builder().record_accesses(true).checked();
            let device = CudaDevice::new(sim.ordinal()).unwrap();
            let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
            let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
            let (stream, captured) = (CudaStream::new(&device).unwrap(), CudaStream::new(&device).unwrap());
            let ((source, _), there) =
                (heap::heap(BYTES, true), memory.allocate(MemoryKind::Device, BYTES).unwrap());
            drop(cache.register(&source.slice(..BYTES / 2).unwrap()).unwrap());
            let pairs = [(source.clone(), there.clone())];
            let copy = if in_batch {
                Operation::CopyBatch { pairs: &pairs }
            } else {
                Operation::Copy { src: &source, dst: &there }
            };
            let ((begun, has_begun), (done, is_done)) = (channel(), channel::<()>());
            std::thread::scope(|scope| {
                let capturing = scope.spawn(move || {
                    // SAFETY: nobody else uses the stream.
                    let capture = unsafe { Capture::begin(&captured, CaptureMode::Global) }.unwrap();
                    begun.send(()).unwrap();
                    let _dropped = is_done.recv();
                    capture.end().map(drop)
                });
                has_begun.recv().unwrap();
                // The whole is refused, the first part is enqueued, the second fails.
                sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 3, UNKNOWN);
                if synchronize_fails {
                    sim.fail_call(Some("cuStreamSynchronize"), 1, OTHER);
                }
                let error = submit(&stream, &copy, Timing::Off).unwrap_err();
                let queued = sim.queued();
                drop(done);
                capturing.join().unwrap().expect("the other thread's capture is valid to its end");
                assert_eq!(queued, 0, "a part may still read memory that is free to be used again: {error}");
                assert!(error.to_string().contains("999"), "the copy's own error: {error}");
            });
            source.try_write().unwrap().fill(3);
            drop((pairs, source, there, cache, stream));
            memory.drain().unwrap();
            drop((memory, device));
            assert!(sim.races().is_empty(), "{}", sim.races()[0]);
            assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
        }
    });
}
