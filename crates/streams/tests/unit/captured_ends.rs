//! Tasks that await the end of a captured stream's work sleep meanwhile.

use std::{
    sync::atomic::AtomicU64,
    task::Wake,
    thread,
    time::{Duration, Instant},
};

use transload_cuda_sim::{SimDevice, harness::Checked};
use transload_cuda_sys::{AsStream, Capture, CaptureMode, Stream, StreamOptions};
use transload_memory::{CudaDevice, WordPage};

use super::*;
use crate::{completion::stream_end::StreamEnd, stream::handle::StreamHandle};

#[derive(Default)]
struct Wakes(AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Checks that a task that awaits the fence is not woken before the capture ends, and is then.
fn check<S: AsStream>(fence: &Fence, capture: Capture<'_, S>, after_wake: impl FnOnce()) {
    let wakes = Arc::new(Wakes::default());
    let count = || wakes.0.load(Ordering::SeqCst);
    let await_it = || fence.timeline().wake_at(1, &Waker::from(Arc::clone(&wakes)));
    assert!(!await_it());
    // Time enough for the reactor to poll.
    (0..10_000).take_while(|_| count() == 0).for_each(|_| thread::yield_now());
    assert_eq!(count(), 0, "woken during the capture");
    capture.end().unwrap();
    let begun = Instant::now();
    while count() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "not woken after the capture");
        thread::yield_now();
    }
    after_wake();
    fence.wait().unwrap();
    assert!(await_it());
}

fn device() -> (Checked, CudaDevice) {
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().checked();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    (sim, device)
}

#[test]
fn task_awaiting_the_end_of_a_capture_sleeps() {
    let (_sim, device) = device();
    let stream = CudaStream::new(&device).unwrap();
    let _exposed = stream.handle();
    let fence = AfterCapture::of(stream.clone());
    // SAFETY: nothing else is enqueued on the stream meanwhile.
    check(&fence, unsafe { Capture::begin(&stream, CaptureMode::Relaxed) }.unwrap(), || ());
}

#[test]
fn reactor_does_not_wait_for_work_from_before_a_capture() {
    let (sim, device) = device();
    let stream = CudaStream::new(&device).unwrap();
    let _exposed = stream.handle();
    let page = WordPage::new(device.context().unwrap()).unwrap();
    let (word, address) = page.word(0);
    // SAFETY: the page lives until the stream has passed the word, and this thread writes it.
    unsafe { stream.own.stream().wait_word(address, 1) }.unwrap();
    // One more polls an old one.
    let before: Vec<Fence> = (1..64).map(|_| stream.fence().unwrap()).collect();
    let fence = AfterCapture::of(stream.clone());
    // SAFETY: nothing else is enqueued on the stream meanwhile.
    let capture = unsafe { Capture::begin(&stream, CaptureMode::Relaxed) }.unwrap();
    sim.fail_call(Some("cuEventQuery"), 1, 2);
    check(&fence, capture, || word.store(1, Ordering::Release));
    drop(before);
}

#[test]
fn task_awaiting_the_end_of_a_captured_stream_sleeps() {
    let (_sim, device) = device();
    // Starts the reactor.
    let _other = CudaStream::new(&device).unwrap();
    let options = StreamOptions { priority: 0, blocking: true };
    let stream = Arc::new(StreamHandle::from(Stream::new(device.context().unwrap(), options).unwrap()));
    // SAFETY: nothing is enqueued on the stream.
    let capture = unsafe { Capture::begin(&**stream, CaptureMode::Relaxed) }.unwrap();
    let end = StreamEnd::of(next_timeline_id(), &stream);
    check(&end.fence(), capture, || ());
}
