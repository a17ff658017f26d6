//! Copies of partly registered memory in which one part fails.

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
/// Another error than the copy's, which also does not tell the state of the work.
const OTHER: u32 = 304;

#[test]
fn failed_part_leaves_no_earlier_part_in_flight() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
        let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
        let stream = CudaStream::new(&device).unwrap();
        let ((source, _), there) =
            (heap::heap(BYTES, true), memory.allocate(MemoryKind::Device, BYTES).unwrap());
        drop(cache.register(&source.slice(..10_000).unwrap()).unwrap());
        let rows = Pitched::new(1000, 20, 2000, 1000);
        let half = there.slice(..20_000).unwrap();
        let from = source.slice(..39_000).unwrap();
        let operations = [
            Operation::Copy { src: &source, dst: &there },
            Operation::CopyPitched { src: &from, dst: &half, rows },
        ];
        let written = [&there, &half];
        let back = memory.allocate(MemoryKind::Pinned, BYTES).unwrap();
        // The thread's first refused copy is retried in the device's context.
        submit(&stream, &operations[0], Timing::Off).unwrap().wait().unwrap();
        for (index, operation) in operations.iter().enumerate() {
            // The whole copy is refused, then its parts are enqueued one by one, of which the last fails.
            let trace = transload_cuda_sys::trace::start();
            submit(&stream, operation, Timing::Off).unwrap().wait().unwrap();
            let calls = trace.calls_of_this_thread();
            let parts = calls.iter().filter(|call| call.name == "cuMemcpyHtoDAsync_v2").count() as u64;
            assert!(parts > 1, "{index}: {parts}");
            drop(trace);
            let trace = transload_cuda_sys::trace::start();
            sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), parts, UNKNOWN);
            let failed = submit(&stream, operation, Timing::Off).unwrap_err();
            assert!(failed.kind() == ErrorKind::Device && failed.is_partial(), "{failed}");
            let calls = trace.calls_of_this_thread();
            let last = calls.iter().rposition(|call| call.name == "cuMemcpyHtoDAsync_v2").unwrap();
            let waited = calls[last..].iter().any(|call| call.name == "cuStreamSynchronize");
            assert!(waited, "{index}: the earlier parts were waited for");
            source.try_write().unwrap().fill(3);
            // Who reads the bytes is told, until they are written again.
            let back = back.slice(..written[index].len()).unwrap();
            let read = || submit(&stream, &Operation::Copy { src: written[index], dst: &back }, Timing::Off);
            assert_eq!(read().unwrap_err().kind(), ErrorKind::SourceFailed);
            submit(&stream, &operations[0], Timing::Off).unwrap().wait().unwrap();
            read().unwrap().wait().unwrap();
        }
        drop((from, half, source, there, back, cache, stream));
        memory.drain().unwrap();
        drop((memory, device));
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
        assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
    });
}

/// As if the later part named memory of another device, which is lost.
#[test]
fn part_that_names_a_lost_device_leaves_the_streams_own_device_well() {
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`, which this device's context does not repeat.
    const LOST: u32 = 700;
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
        let stream = CudaStream::new(&device).unwrap();
        let allocate = |kind| memory.allocate(kind, BYTES).unwrap();
        let [one, two] = [(); 2].map(|()| (allocate(MemoryKind::Pinned), allocate(MemoryKind::Device)));
        let pairs = [one.clone(), two.clone()];
        sim.fail_call(Some("cuMemcpyHtoDAsync_v2"), 2, LOST);
        let failed = submit(&stream, &Operation::CopyBatch { pairs: &pairs }, Timing::Off).unwrap_err();
        assert!(failed.kind() == ErrorKind::Device && failed.is_partial(), "{failed}");
        // The first part was waited for, and no other work counts as done before it is.
        one.0.try_write().unwrap().fill(3);
        let copied = submit(&stream, &Operation::Copy { src: &one.0, dst: &one.1 }, Timing::Off).unwrap();
        let back = submit(&stream, &Operation::Copy { src: &one.1, dst: &two.0 }, Timing::Off).unwrap();
        [copied, back].into_iter().for_each(|fence| fence.wait().unwrap());
        assert!(two.0.read().unwrap().iter().all(|byte| *byte == 3));
        assert_eq!(
            submit(&stream, &Operation::Copy { src: &two.1, dst: &two.0 }, Timing::Off).unwrap_err().kind(),
            ErrorKind::SourceFailed
        );
        drop((one, two, pairs, stream));
        memory.drain().unwrap();
        drop((memory, device));
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
        assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
    });
}

/// Partly registered memory, and a copy of it that the driver accepts only in parts.
#[test]
fn failed_part_in_a_capture_waits_for_earlier_parts() {
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
                    // SAFETY: the stream has no other user.
                    let capture = unsafe { Capture::begin(&captured, CaptureMode::Global) }.unwrap();
                    begun.send(()).unwrap();
                    let _dropped = is_done.recv();
                    capture.end().map(drop)
                });
                has_begun.recv().unwrap();
                // The whole copy is refused, its first part is enqueued, its second fails.
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
