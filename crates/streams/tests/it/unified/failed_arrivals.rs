//! A failed copy to the host is not taken for the device's data.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use transload_core::{
    Buffer, DeviceId, Error, ErrorKind, Fence, Operation, Place, Queue, Result, StreamPriority, Timeline,
    TimelineId, Timing, next_timeline_id,
};
use transload_streams::CudaStream;

use super::for_each_fixture;
use crate::support::gate::limited;

/// A timeline whose work all failed.
struct FailedTimeline(TimelineId, DeviceId, Arc<AtomicBool>);

fn failure() -> Error {
    Error::new(ErrorKind::Device, "by the test")
}

// SAFETY: no work has its points, so no memory is used.
unsafe impl Timeline for FailedTimeline {
    fn id(&self) -> TimelineId {
        self.0
    }

    fn device(&self) -> DeviceId {
        self.1
    }

    fn reached(&self) -> u64 {
        u64::from(self.2.load(Ordering::SeqCst))
    }

    fn poll(&self, _: u64) -> Result<bool> {
        Err(failure())
    }

    fn wait(&self, _: u64) -> Result<()> {
        self.2.store(true, Ordering::SeqCst);
        Err(failure())
    }

    fn wake_at(&self, _: u64, _: &Waker) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A queue that accepts every operation and fails it later.
struct Failing {
    stream: CudaStream,
    timeline: Arc<dyn Timeline>,
}

impl Failing {
    fn new(stream: CudaStream) -> Self {
        let timeline = FailedTimeline(next_timeline_id(), stream.device(), Arc::default());
        Self { stream, timeline: Arc::new(timeline) }
    }
}

// SAFETY: a failed operation uses no memory and is complete at once.
unsafe impl Queue for Failing {
    fn device(&self) -> DeviceId {
        self.stream.device()
    }

    fn priority(&self) -> StreamPriority {
        self.stream.priority()
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    fn can_copy(&self, src: Place, dst: Place) -> bool {
        self.stream.can_copy(src, dst)
    }

    fn can_wait_for(&self, fence: &Fence) -> bool {
        self.stream.can_wait_for(fence)
    }

    unsafe fn enqueue(&self, _: &Operation<'_>, _: &[Fence], _: Timing) -> Result<Fence> {
        Ok(Fence::new(Arc::clone(&self.timeline), 1))
    }

    fn outstanding(&self) -> u64 {
        0
    }
}

#[test]
fn failed_host_prefetch_is_an_error_and_shows_no_stale_data() {
    limited(|| {
        for_each_fixture(|fixture| {
            for (round, awaited) in [(1_u8, false), (2, true)] {
                let buffer = fixture.buffer::<u8>(1000);
                // The host has older bytes than the device.
                drop(buffer.read().unwrap());
                buffer.fill(round).unwrap();
                let queue = Failing::new(CudaStream::new(&fixture.setup.device).unwrap());
                let moved = buffer.prefetch_to_host_on(&queue, ..);
                if awaited {
                    assert_eq!(moved.wait().unwrap_err().kind(), ErrorKind::Device, "{fixture}");
                } else {
                    drop(moved);
                }
                assert!(buffer.read().unwrap().iter().all(|byte| *byte == round), "{fixture}: it is stale");
                drop((buffer, queue));
            }
        });
    });
}
