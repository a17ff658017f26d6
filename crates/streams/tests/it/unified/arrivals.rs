//! Prefetches in flight: ordered after earlier work, keeping their memory alive, and releasing their stream once complete.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use transload_core::{
    Buffer, DeviceId, ErrorKind, Fence, Operation, Pattern, Place, Queue, QueueLease, Result, StreamPriority,
    Timeline, Timing, submit,
};
use transload_memory::UnifiedBuffer;
use transload_streams::CudaStream;

use super::for_each_fixture;
use crate::support::gate::{Gate, limited};

#[test]
fn host_prefetch_completes_after_earlier_writers() {
    limited(|| {
        for_each_fixture(|fixture| {
            let buffer = fixture.buffer::<u8>(50_000);
            drop(buffer.read().unwrap());
            let [writer, mover] = [(); 2].map(|()| CudaStream::new(&fixture.setup.device).unwrap());
            for to_host in [false, true] {
                let gate = Gate::before(&fixture.setup.device, &[&writer]);
                let fill = Operation::Fill { dst: buffer.raw(), pattern: Pattern::U8(4) };
                submit(&writer, &fill, Timing::Off).unwrap();
                let moved = if to_host {
                    buffer.prefetch_to_host_on(&mover, 10..20)
                } else {
                    buffer.prefetch_to_device_on(&mover, 10..20, None)
                };
                assert!(
                    !moved.is_complete() && !mover.is_ready().unwrap(),
                    "{fixture}: to the host: {to_host}"
                );
                gate.open();
                moved.wait().unwrap();
            }
            assert!(buffer.read().unwrap().iter().all(|byte| *byte == 4), "{fixture}");
            drop((buffer, writer, mover));
        });
    });
}

#[test]
fn try_slice_is_busy_only_where_a_prefetch_is_in_flight() {
    limited(|| {
        for_each_fixture(|fixture| {
            let buffer = fixture.buffer::<u8>(2 << 20);
            drop(buffer.read().unwrap());
            let mover = CudaStream::new(&fixture.setup.device).unwrap();
            let gate = Gate::before(&fixture.setup.device, &[&mover]);
            let moved = buffer.prefetch_to_host_on(&mover, ..1 << 20);
            assert_eq!(buffer.try_write(..5).unwrap_err().kind(), ErrorKind::Busy, "{fixture}");
            if !fixture.is_managed() {
                assert_eq!(buffer.try_read(..5).unwrap_err().kind(), ErrorKind::Busy, "{fixture}");
            }
            assert!(buffer.try_read(1 << 20..).is_ok() && buffer.try_write(1 << 20..).is_ok(), "{fixture}");
            gate.open();
            moved.wait().unwrap();
            assert!(buffer.try_write(..5).is_ok(), "{fixture}");
            drop((buffer, mover));
        });
    });
}

#[test]
fn host_writes_of_a_dropped_buffer_are_uploaded() {
    limited(|| {
        for_each_fixture(|fixture| {
            let own = CudaStream::new(&fixture.setup.device).unwrap();
            let queue = QueueLease::new(Arc::new(own.clone()));
            let buffer =
                UnifiedBuffer::<u8>::new_with_mode(&fixture.setup.memory, queue, 100_000, fixture.mode)
                    .unwrap();
            let kept = buffer.raw().clone();
            let mut slice = buffer.write().unwrap();
            let gate = Gate::before(&fixture.setup.device, &[&own]);
            slice.fill(8);
            drop(slice);
            drop(buffer);
            let ledger = fixture.setup.memory.resource_counts();
            let copies = usize::from(!fixture.is_managed()) as u64;
            assert_eq!(
                (ledger.allocations, ledger.pending_free),
                (1 + copies, copies),
                "{fixture}: it is on its way"
            );
            gate.open();
            let back = fixture.setup.pinned(&vec![0; 100_000]);
            fixture.stream.copy_to_host_async(&kept, &back).wait().unwrap();
            assert!(back.read().unwrap().iter().all(|byte| *byte == 8), "{fixture}");
            drop((kept, back, own));
        });
    });
}

/// A stream that cannot wait for other timelines, and opens a gate when asked.
struct OwnFencesOnly {
    stream: CudaStream,
    gate: Mutex<Option<Gate>>,
    /// Largest number of fences passed to an operation.
    given: AtomicUsize,
}

// SAFETY: the stream keeps the contract and waits for the fences that it is given.
unsafe impl Queue for OwnFencesOnly {
    fn device(&self) -> DeviceId {
        self.stream.device()
    }

    fn priority(&self) -> StreamPriority {
        self.stream.priority()
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        self.stream.timeline()
    }

    fn can_copy(&self, src: Place, dst: Place) -> bool {
        self.stream.can_copy(src, dst)
    }

    fn can_wait_for(&self, fence: &Fence) -> bool {
        let own = fence.timeline().id() == self.timeline().id();
        let gate = if own { None } else { self.gate.lock().unwrap().take() };
        gate.into_iter().for_each(Gate::open);
        own
    }

    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence> {
        self.given.fetch_max(after.len(), Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { self.stream.enqueue(operation, after, timing) }
    }

    fn outstanding(&self) -> u64 {
        self.stream.outstanding()
    }
}

#[test]
fn queue_that_cannot_wait_gets_no_dependent_work() {
    limited(|| {
        for_each_fixture(|fixture| {
            let buffer = fixture.buffer::<u8>(50_000);
            drop(buffer.read().unwrap());
            let writer = CudaStream::new(&fixture.setup.device).unwrap();
            let queue = OwnFencesOnly {
                stream: CudaStream::new(&fixture.setup.device).unwrap(),
                gate: Mutex::new(None),
                given: AtomicUsize::new(0),
            };
            for to_host in [false, true] {
                *queue.gate.lock().unwrap() = Some(Gate::before(&fixture.setup.device, &[&writer]));
                let fill = Operation::Fill { dst: buffer.raw(), pattern: Pattern::U8(6) };
                submit(&writer, &fill, Timing::Off).unwrap();
                let moved = if to_host {
                    buffer.prefetch_to_host_on(&queue, ..)
                } else {
                    buffer.prefetch_to_device_on(&queue, .., None)
                };
                moved.wait().unwrap();
                assert_eq!(queue.given.load(Ordering::SeqCst), 0, "{fixture}: to the host: {to_host}");
            }
            assert!(buffer.read().unwrap().iter().all(|byte| *byte == 6), "{fixture}");
            drop((buffer, writer, queue));
        });
    });
}
