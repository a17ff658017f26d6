//! A buffer holds no lock while it calls its queue, so other threads can use it.

use std::{
    any::Any,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::Waker,
    thread,
};

use transload_core::{
    Access, Buffer, DeviceId, Fence, Operation, Place, Queue, QueueLease, Result, StreamPriority, Timeline,
    TimelineId, Timing, next_timeline_id,
};
use transload_memory::{Role, UnifiedBuffer};
use transload_streams::CudaStream;

use super::for_each_fixture;
use crate::support::gate::limited;

/// A stream that has another thread use the buffer during each of its calls.
struct InterferingQueue {
    stream: CudaStream,
    buffer: OnceLock<Weak<UnifiedBuffer<u8>>>,
    /// Prevents recursion through the other thread's own calls.
    inside: AtomicBool,
    calls: AtomicU32,
}

impl InterferingQueue {
    fn interfere(&self, buffer: &UnifiedBuffer<u8>) {
        let beside =
            buffer.acquire_range_for_device(&self.stream, 90.., Role::Resident, Access::Write).unwrap();
        let fill = Operation::Fill { dst: beside.raw(), pattern: transload_core::Pattern::U8(9) };
        transload_core::submit(&self.stream, &fill, Timing::Off).unwrap();
        drop(beside);
        assert!(buffer.read_range(90..).unwrap().iter().all(|byte| *byte == 9));
        buffer.write_range(80..90).unwrap().fill(8);
    }
}

// SAFETY: the stream keeps the contract.
unsafe impl Queue for InterferingQueue {
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
        self.stream.can_wait_for(fence)
    }

    unsafe fn enqueue(&self, operation: &Operation<'_>, after: &[Fence], timing: Timing) -> Result<Fence> {
        if let Some(buffer) = self.buffer.get().and_then(Weak::upgrade)
            && !self.inside.swap(true, Ordering::SeqCst)
        {
            self.calls.fetch_add(1, Ordering::SeqCst);
            thread::scope(|scope| scope.spawn(|| self.interfere(&buffer)).join().unwrap());
            self.inside.store(false, Ordering::SeqCst);
        }
        // SAFETY: the caller's promise.
        unsafe { self.stream.enqueue(operation, after, timing) }
    }

    fn outstanding(&self) -> u64 {
        self.stream.outstanding()
    }
}

#[test]
fn other_ranges_are_usable_during_a_driver_call() {
    limited(|| {
        for_each_fixture(|fixture| {
            let queue = Arc::new(InterferingQueue {
                stream: fixture.stream.clone(),
                buffer: OnceLock::new(),
                inside: AtomicBool::new(false),
                calls: AtomicU32::new(0),
            });
            let lease = QueueLease::new(Arc::clone(&queue) as Arc<dyn Queue>);
            let (memory, mode) = (&fixture.setup.memory, fixture.mode);
            let buffer = Arc::new(UnifiedBuffer::<u8>::new_with_mode(memory, lease, 100, mode).unwrap());
            queue.buffer.set(Arc::downgrade(&buffer)).unwrap();
            for round in 1..5_u8 {
                buffer.write_range(..50).unwrap().fill(round);
                buffer.prefetch_range_to_host(..80).wait().unwrap();
                buffer.prefetch_range_to_device(..80, None).wait().unwrap();
                let there =
                    buffer.acquire_range_for_device(&*queue, ..80, Role::Resident, Access::Write).unwrap();
                let part = there.raw().slice(10..20).unwrap();
                let fill = Operation::Fill { dst: &part, pattern: transload_core::Pattern::U8(100 + round) };
                transload_core::submit(&*queue, &fill, Timing::Off).unwrap();
                drop((there, part));
                let seen = buffer.read_range(..80).unwrap();
                assert!(seen[..10].iter().chain(&seen[20..50]).all(|byte| *byte == round), "{fixture}");
                assert!(seen[10..20].iter().all(|byte| *byte == 100 + round), "{fixture}");
                assert!(seen[50..].iter().all(|byte| *byte == 0), "{fixture}");
            }
            let all = buffer.read().unwrap();
            assert!(all[80..90].iter().all(|byte| *byte == 8) && all[90..].iter().all(|byte| *byte == 9));
            drop(all);
            assert!(queue.calls.load(Ordering::SeqCst) > 10, "{fixture}: it was called");
            assert_eq!(buffer.len(), 100);
            drop((buffer, queue));
        });
    });
}

/// The timeline of completed work, which uses the buffer when it is dropped.
struct UsesBufferOnDrop {
    id: TimelineId,
    device: DeviceId,
    buffer: Weak<UnifiedBuffer<u8>>,
    left: Arc<AtomicU32>,
}

impl Drop for UsesBufferOnDrop {
    fn drop(&mut self) {
        let buffer = self.buffer.upgrade().unwrap();
        thread::scope(|scope| scope.spawn(|| drop(buffer.try_read(90..))).join().unwrap());
        self.left.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: it has no work.
unsafe impl Timeline for UsesBufferOnDrop {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        self.device
    }

    fn reached(&self) -> u64 {
        u64::MAX
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        Ok(true)
    }

    fn wait(&self, _point: u64) -> Result<()> {
        Ok(())
    }

    fn wake_at(&self, _point: u64, _waker: &Waker) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn stream_of_the_last_fence_is_dropped_outside_locks() {
    limited(|| {
        for_each_fixture(|fixture| {
            let buffer = Arc::new(fixture.buffer::<u8>(100));
            let left = Arc::new(AtomicU32::new(0));
            for access in [Access::Read, Access::Write] {
                drop(buffer.read().unwrap());
                let timeline: Arc<dyn Timeline> = Arc::new(UsesBufferOnDrop {
                    id: next_timeline_id(),
                    device: fixture.stream.device(),
                    buffer: Arc::downgrade(&buffer),
                    left: Arc::clone(&left),
                });
                let mut loan = buffer.raw().slice(..50).unwrap().lend(access).unwrap();
                let fence = Fence::new(timeline, 1);
                loan.end_after(std::slice::from_ref(&fence));
                drop(fence);
                drop(buffer.write_range(..10).unwrap());
                buffer.fill(1).unwrap();
            }
            assert_eq!(left.load(Ordering::SeqCst), 2, "{fixture}");
            drop(buffer);
        });
    });
}
