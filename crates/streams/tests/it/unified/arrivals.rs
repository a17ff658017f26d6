//! A prefetch comes behind what is in flight on its range, and what is under way keeps its memory, and no stream once it is over.

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

use super::everywhere;
use crate::support::gate::{Gate, limited};

#[test]
fn a_prefetch_is_over_only_behind_what_wrote_its_range_before_on_whatever_stream() {
    limited(|| {
        everywhere(|bench| {
            let buffer = bench.buffer::<u8>(50_000);
            drop(buffer.read().unwrap());
            let [writer, mover] = [(); 2].map(|()| CudaStream::new(&bench.setup.device).unwrap());
            for to_host in [false, true] {
                let gate = Gate::before(&bench.setup.device, &[&writer]);
                let fill = Operation::Fill { dst: buffer.raw(), pattern: Pattern::U8(4) };
                submit(&writer, &fill, Timing::Off).unwrap();
                let moved = if to_host {
                    buffer.prefetch_to_host_on(&mover, 10..20)
                } else {
                    buffer.prefetch_to_device_on(&mover, 10..20, None)
                };
                assert!(
                    !moved.is_complete() && !mover.is_ready().unwrap(),
                    "{bench}: to the host: {to_host}"
                );
                gate.open();
                moved.wait().unwrap();
            }
            assert!(buffer.read().unwrap().iter().all(|byte| *byte == 4), "{bench}");
            drop((buffer, writer, mover));
        });
    });
}

#[test]
fn a_slice_that_may_not_wait_is_refused_while_its_bytes_arrive_and_one_beside_them_is_not() {
    limited(|| {
        everywhere(|bench| {
            let buffer = bench.buffer::<u8>(2 << 20);
            drop(buffer.read().unwrap());
            let mover = CudaStream::new(&bench.setup.device).unwrap();
            let gate = Gate::before(&bench.setup.device, &[&mover]);
            let moved = buffer.prefetch_to_host_on(&mover, ..1 << 20);
            assert_eq!(buffer.try_write(..5).unwrap_err().kind(), ErrorKind::Busy, "{bench}");
            if !bench.is_managed() {
                assert_eq!(buffer.try_read(..5).unwrap_err().kind(), ErrorKind::Busy, "{bench}");
            }
            assert!(buffer.try_read(1 << 20..).is_ok() && buffer.try_write(1 << 20..).is_ok(), "{bench}");
            gate.open();
            moved.wait().unwrap();
            assert!(buffer.try_write(..5).is_ok(), "{bench}");
            drop((buffer, mover));
        });
    });
}

#[test]
fn what_the_host_wrote_last_arrives_also_where_the_buffer_is_dropped_before_it_is_sent() {
    limited(|| {
        everywhere(|bench| {
            let own = CudaStream::new(&bench.setup.device).unwrap();
            let queue = QueueLease::new(Arc::new(own.clone()));
            let buffer =
                UnifiedBuffer::<u8>::new_with_mode(&bench.setup.memory, queue, 100_000, bench.mode).unwrap();
            let kept = buffer.raw().clone();
            let mut slice = buffer.write().unwrap();
            let gate = Gate::before(&bench.setup.device, &[&own]);
            slice.fill(8);
            drop(slice);
            drop(buffer);
            let ledger = bench.setup.memory.resource_counts();
            let copies = usize::from(!bench.is_managed()) as u64;
            assert_eq!(
                (ledger.allocations, ledger.parked),
                (1 + copies, copies),
                "{bench}: it is on its way"
            );
            gate.open();
            let back = bench.setup.pinned(&vec![0; 100_000]);
            bench.stream.copy_to_host_async(&kept, &back).wait().unwrap();
            assert!(back.read().unwrap().iter().all(|byte| *byte == 8), "{bench}");
            drop((kept, back, own));
        });
    });
}

/// A stream that waits for nobody else's work, and opens a gate where it says so.
struct Lonely {
    stream: CudaStream,
    gate: Mutex<Option<Gate>>,
    /// The most fences that an operation was to come after.
    given: AtomicUsize,
}

// SAFETY: the stream keeps the promises; what it is given to wait for, it waits for.
unsafe impl Queue for Lonely {
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
fn a_queue_that_cannot_wait_for_other_work_is_given_none_of_it() {
    limited(|| {
        everywhere(|bench| {
            let buffer = bench.buffer::<u8>(50_000);
            drop(buffer.read().unwrap());
            let writer = CudaStream::new(&bench.setup.device).unwrap();
            let queue = Lonely {
                stream: CudaStream::new(&bench.setup.device).unwrap(),
                gate: Mutex::new(None),
                given: AtomicUsize::new(0),
            };
            for to_host in [false, true] {
                *queue.gate.lock().unwrap() = Some(Gate::before(&bench.setup.device, &[&writer]));
                let fill = Operation::Fill { dst: buffer.raw(), pattern: Pattern::U8(6) };
                submit(&writer, &fill, Timing::Off).unwrap();
                let moved = if to_host {
                    buffer.prefetch_to_host_on(&queue, ..)
                } else {
                    buffer.prefetch_to_device_on(&queue, .., None)
                };
                moved.wait().unwrap();
                assert_eq!(queue.given.load(Ordering::SeqCst), 0, "{bench}: to the host: {to_host}");
            }
            assert!(buffer.read().unwrap().iter().all(|byte| *byte == 6), "{bench}");
            drop((buffer, writer, queue));
        });
    });
}
