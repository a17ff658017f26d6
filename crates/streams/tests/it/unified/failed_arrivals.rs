//! A copy to the host that failed on its way is not taken for what the device wrote.

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

use super::everywhere;
use crate::support::gate::limited;

/// Everything on it failed.
struct FailedLine(TimelineId, DeviceId, Arc<AtomicBool>);

fn failure() -> Error {
    Error::new(ErrorKind::Device, "by the test")
}

// SAFETY: nothing is ever enqueued behind its points, so nothing uses any memory.
unsafe impl Timeline for FailedLine {
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

/// Takes every operation, and fails it later.
struct Failing {
    stream: CudaStream,
    timeline: Arc<dyn Timeline>,
}

impl Failing {
    fn new(stream: CudaStream) -> Self {
        let timeline = FailedLine(next_timeline_id(), stream.device(), Arc::default());
        Self { stream, timeline: Arc::new(timeline) }
    }
}

// SAFETY: what fails uses no memory, and is over at once.
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
fn a_prefetch_to_the_host_that_fails_tells_who_awaits_it_and_shows_nobody_older_bytes() {
    limited(|| {
        everywhere(|bench| {
            for (round, awaited) in [(1_u8, false), (2, true)] {
                let buffer = bench.buffer::<u8>(1000);
                // The host has older bytes than the device.
                drop(buffer.read().unwrap());
                buffer.fill(round).unwrap();
                let queue = Failing::new(CudaStream::new(&bench.setup.device).unwrap());
                let moved = buffer.prefetch_to_host_on(&queue, ..);
                if awaited {
                    assert_eq!(moved.wait().unwrap_err().kind(), ErrorKind::Device, "{bench}");
                } else {
                    drop(moved);
                }
                assert!(buffer.read().unwrap().iter().all(|byte| *byte == round), "{bench}: it is stale");
                drop((buffer, queue));
            }
        });
    });
}
