//! Streams and another API wait for each other on the device, by a semaphore. A word in mapped memory stands for it.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    task::Waker,
    time::Duration,
};

use transload_core::{
    Access, Claims, DeviceId, Error, ErrorKind, Fence, Operation, Queue as _, Result, Timeline, TimelineId,
    Timing, next_timeline_id, submit,
};
use transload_cuda_sys::{AsStream as _, DriverError, RawStream, Stream, check, ffi};
use transload_memory::{FreeDeferral, WordPage};
use transload_streams::{CudaStream, ExternalSemaphore, ExternalTimeline, SemaphoreCalls};

use crate::support::{
    gate::{Gate, limited},
    setup::{Setup, noise},
};

const BYTES: usize = 100_000;

/// A semaphore. Tells when it is dropped.
struct Word {
    page: Arc<WordPage>,
    dropped: Sender<()>,
}

// SAFETY: the driver's waits and writes of words are in the order of the stream.
unsafe impl SemaphoreCalls for Word {
    fn wait(&self, stream: RawStream, value: u64) -> Result<(), DriverError> {
        // SAFETY: the word lives as long as the semaphore; the stream is valid.
        let code = unsafe { ffi::cuStreamWaitValue32_v2(stream, self.page.word(0).1, value as u32, 0) };
        check("cuStreamWaitValue32_v2", code)
    }

    fn signal(&self, stream: RawStream, value: u64) -> Result<(), DriverError> {
        // SAFETY: as above.
        let code = unsafe { ffi::cuStreamWriteValue32_v2(stream, self.page.word(0).1, value as u32, 0) };
        check("cuStreamWriteValue32_v2", code)
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        let _nobody_asks = self.dropped.send(());
    }
}

/// The queue of the other API.
struct Other {
    id: TimelineId,
    reached: AtomicU64,
    was_waited_for: AtomicBool,
}

// SAFETY: there is no work.
unsafe impl Timeline for Other {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Wgpu(0)
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    fn poll(&self, point: u64) -> Result<bool> {
        match self.reached() {
            u64::MAX => Err(Error::new(ErrorKind::DeviceLost, "lost")),
            reached => Ok(reached >= point),
        }
    }

    fn wait(&self, point: u64) -> Result<()> {
        self.was_waited_for.store(true, Ordering::Release);
        self.poll(point).map(drop)
    }

    fn wake_at(&self, point: u64, _: &Waker) -> bool {
        self.reached() >= point
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Both {
    setup: Setup,
    stream: CudaStream,
    page: Arc<WordPage>,
    dropped: Receiver<()>,
    other: Arc<Other>,
}

impl Both {
    fn new() -> (Self, ExternalSemaphore) {
        let setup = Setup::new();
        let stream = CudaStream::new(&setup.device).unwrap();
        let page = Arc::new(WordPage::new(setup.device.context().unwrap()).unwrap());
        let (sender, dropped) = channel();
        let semaphore =
            ExternalSemaphore::new(&setup.device, Word { page: Arc::clone(&page), dropped: sender });
        let (id, was_waited_for) = (next_timeline_id(), AtomicBool::new(false));
        let other = Arc::new(Other { id, reached: AtomicU64::new(0), was_waited_for });
        (Self { setup, stream, page, dropped, other }, semaphore)
    }

    fn timeline(&self, semaphore: ExternalSemaphore) -> Arc<ExternalTimeline> {
        // SAFETY: the tests set the word before the point.
        unsafe { ExternalTimeline::new(Arc::clone(&self.other) as Arc<dyn Timeline>, semaphore) }
    }

    fn word(&self) -> u32 {
        self.page.word(0).0.load(Ordering::Acquire)
    }

    fn set_word(&self, value: u32) {
        self.page.word(0).0.store(value, Ordering::Release);
    }

    fn finish(self) {
        let Self { setup, stream, page, .. } = self;
        stream.synchronize().unwrap();
        drop((stream, page));
        setup.finish();
    }
}

/// Polls as often as the software driver needs to run everything that is ready.
fn stays_pending(fence: &Fence) -> bool {
    (0..100).all(|_| !fence.is_complete())
}

/// Runs a test, unless the driver has no words for it.
fn with_words(test: impl FnOnce() + Send + 'static) {
    limited(|| {
        drop(Setup::new());
        if Stream::can_wait_words() && Stream::can_write_words() {
            test();
        } else {
            println!("skipped: the driver has no waits for words");
        }
    });
}

#[test]
fn work_waits_for_another_api_on_the_device() {
    with_words(|| {
        let (both, semaphore) = Both::new();
        let timeline = both.timeline(semaphore);
        let (src, dst) = (both.setup.pinned(&noise(BYTES, 1)), both.setup.device(BYTES));
        let second = CudaStream::new(&both.setup.device).unwrap();
        let frees = FreeDeferral::begin();
        let fence = timeline.fence(1, None);
        let claims = Claims::acquire(&mut [(&src, Access::Write)]).unwrap();
        // SAFETY: there is no work.
        unsafe { claims.commit(&fence) };
        assert!(both.stream.can_wait_for(&fence));
        let copied = submit(&both.stream, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
        second.wait_fences(&[fence]).unwrap();
        let after = second.fence().unwrap();
        let (copy_waits, fence_waits) = (stays_pending(&copied), stays_pending(&after));
        both.set_word(1);
        assert!(copy_waits && fence_waits);
        assert!(!both.other.was_waited_for.load(Ordering::Acquire));
        copied.wait().unwrap();
        after.wait().unwrap();
        both.other.reached.store(1, Ordering::Release);
        drop((frees, src, dst, copied, after, timeline, second));
        both.finish();
    });
}

#[test]
fn signal_comes_after_the_last_operation_of_a_stream() {
    with_words(|| {
        let (both, semaphore) = Both::new();
        let (src, dst) = (both.setup.pinned(&noise(BYTES, 1)), both.setup.device(BYTES));
        let copy = || submit(&both.stream, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap();
        let held = CudaStream::new(&both.setup.device).unwrap();
        let gate = Gate::before(&both.setup.device, &[&held]);
        let unblocked = held.fence().unwrap();
        both.stream.wait_fences(std::slice::from_ref(&unblocked)).unwrap();
        let [first, last] = [copy(), copy()];
        assert!(!semaphore.signal_after(&first, 1).unwrap(), "work after the fence would be waited for");
        assert!(!semaphore.signal_after(&unblocked, 1).unwrap(), "its stream waited for another's event");
        assert!(semaphore.signal_after(&last, 1).unwrap());
        assert!(stays_pending(&last));
        assert_eq!(both.word(), 0);
        gate.open();
        both.stream.synchronize().unwrap();
        assert_eq!(both.word(), 1);
        // Others may enqueue what nobody knows of.
        let _given_out = both.stream.as_raw();
        assert!(!semaphore.signal_after(&copy(), 2).unwrap());
        drop((src, dst, first, last, held, unblocked, semaphore));
        both.finish();
    });
}

#[test]
fn loss_of_the_other_api_ends_no_work_of_cuda() {
    with_words(|| {
        let (both, semaphore) = Both::new();
        let timeline = both.timeline(semaphore);
        let second = CudaStream::new(&both.setup.device).unwrap();
        let gate = Gate::before(&both.setup.device, &[&both.stream]);
        let earlier = both.stream.fence().unwrap();
        let fences = [timeline.fence(1, Some(earlier.clone())), timeline.fence(2, None)];
        both.set_word(2);
        both.other.reached.store(u64::MAX, Ordering::Release);
        second.wait_fences(&fences).unwrap();
        let after = second.fence().unwrap();
        for fence in &fences {
            assert!(!fence.is_known_complete() && stays_pending(fence));
            assert!(!timeline.wake_at(fence.point(), Waker::noop()));
        }
        assert!(stays_pending(&after));
        gate.open();
        for fence in &fences {
            assert_eq!(fence.wait().unwrap_err().kind(), ErrorKind::DeviceLost);
            assert!(fence.is_known_complete());
        }
        after.wait().unwrap();
        drop((fences, after, earlier, timeline, second));
        both.finish();
    });
}

#[test]
fn semaphore_outlives_the_streams_waits() {
    with_words(|| {
        let (both, semaphore) = Both::new();
        let timeline = both.timeline(semaphore);
        let frees = FreeDeferral::begin();
        let waiting = CudaStream::new(&both.setup.device).unwrap();
        waiting.wait_fences(&[timeline.fence(1, None)]).unwrap();
        drop((waiting, timeline));
        // It would be dropped at once.
        let dropped_early = both.dropped.recv_timeout(Duration::from_millis(100)).is_ok();
        both.set_word(1);
        assert!(!dropped_early);
        both.dropped.recv().unwrap();
        drop(frees);
        both.finish();
    });
}
