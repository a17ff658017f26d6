//! Signals of CUDA's streams that fail. On the software driver, whose streams signal to a list.

use std::{sync::mpsc, thread, time::Duration};

use transload_core::Queue as _;
use transload_cuda_sim::harness;
use transload_cuda_sys::{DriverError, RawStream};
use transload_streams::SemaphoreCalls;

use super::*;
use crate::setup;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;

/// What was signalled.
#[derive(Clone, Default)]
struct Signalled(Arc<parking_lot::Mutex<Vec<u64>>>);

// SAFETY: nothing waits.
unsafe impl SemaphoreCalls for Signalled {
    fn wait(&self, _: RawStream, _: u64) -> Result<(), DriverError> {
        Ok(())
    }

    fn signal(&self, _: RawStream, value: u64) -> Result<(), DriverError> {
        self.0.lock().push(value);
        Ok(())
    }
}

#[test]
fn value_of_a_signal_that_may_be_enqueued_is_not_signalled_again() {
    let Some(backend) = setup::backend().filter(|_| !harness::is_real()) else { return };
    let state = backend.states().remove(0);
    let test = harness::device_like(|builder| builder);
    let cuda = CudaDevice::new(test.ordinal()).unwrap();
    let (queue, signalled) = (Arc::clone(&state.queue), Signalled::default());
    let semaphore = || ExternalSemaphore::new(&cuda, signalled.clone());
    let [stream, other] = [(); 2].map(|()| CudaStream::new(&cuda).unwrap());
    let by = stream.timeline().id();
    let vulkan = Arc::new(Semaphore::new(&queue.vulkan).unwrap());
    // SAFETY: nothing waits for it.
    let after = unsafe { ExternalTimeline::new(Arc::clone(&queue) as Arc<dyn Timeline>, semaphore()) };
    let before = vec![Before::of(&queue.vulkan, by, semaphore(), vulkan)];
    let mut order = Order { queue, before, after, stream: other, cuda };
    // No stream's.
    let fence = backend.fence(state.id(), &[]).unwrap();
    assert!(order.signal_by(&fence).unwrap().is_none() && order.before[0].by == by);
    let fence = stream.fence().unwrap();
    // The event after the signal.
    test.sim().unwrap().fail_call(Some("cuEventRecord"), 1, OUT_OF_MEMORY);
    assert_eq!(order.signal_by(&fence).err().unwrap().kind(), ErrorKind::OutOfMemory);
    let signal = order.signal_by(&fence).unwrap().unwrap();
    assert_eq!((&signalled.0.lock()[..], signal.awaited.1), (&[1, 2][..], 2));
}

/// `CUDA_ERROR_ILLEGAL_ADDRESS`.
const ILLEGAL_ADDRESS: u32 = 700;
/// What a device answers that answers no call any more.
const UNKNOWN: u32 = 999;

/// The streams of the driver signal nothing, as after a loss.
#[test]
fn submission_that_waits_for_a_lost_context_ends() {
    for code in [ILLEGAL_ADDRESS, UNKNOWN] {
        [false, true].into_iter().for_each(|by_polling| end_after_a_loss(by_polling, code));
    }
}

fn end_after_a_loss(by_polling: bool, code: u32) {
    let Some(backend) = setup::backend().filter(|_| !harness::is_real()) else { return };
    let state = backend.states().remove(0);
    let test = harness::device_like(|builder| builder);
    let cuda = CudaDevice::new(test.ordinal()).unwrap();
    let (queue, stream) = (Arc::clone(&state.queue), CudaStream::new(&cuda).unwrap());
    let semaphore = || ExternalSemaphore::new(&cuda, Signalled::default());
    let vulkan = Arc::new(Semaphore::new(&queue.vulkan).unwrap());
    // SAFETY: nothing waits for it.
    let after = unsafe { ExternalTimeline::new(Arc::clone(&queue) as Arc<dyn Timeline>, semaphore()) };
    let by = stream.timeline().id();
    let before = vec![Before::of(&queue.vulkan, by, semaphore(), Arc::clone(&vulkan))];
    let other = CudaStream::new(&cuda).unwrap();
    let mut order = Order { queue: Arc::clone(&queue), before, after, stream: other, cuda };
    let signal = order.signal_by(&stream.fence().unwrap()).unwrap().unwrap();
    let copier = Arc::clone(&state.copiers[0].queue);
    // SAFETY: there are no commands; the semaphores are this device's, and live until the points are reached.
    let (point, behind) = unsafe {
        let point = queue.submit(&[], &[signal.awaited]).unwrap();
        (point, copier.submit(&[], &[queue.semaphore().at(point)]).unwrap())
    };
    let fence = order.fence(point, Some(signal));
    for _ in 0..100 {
        assert!(!fence.is_complete() && !copier.poll(behind).unwrap(), "the stream may still signal");
    }
    test.sim().unwrap().poison(code);
    // Who waits for CUDA's own work finds the loss.
    stream.synchronize().unwrap_err();
    let (ended, ends) = mpsc::channel();
    // A copier waits for the submission, and knows nothing of CUDA.
    let waiting = thread::spawn(move || {
        if by_polling {
            while !copier.poll(behind).unwrap() {
                thread::yield_now();
            }
        }
        copier.block_until(behind);
        ended.send(()).unwrap();
    });
    let is_over = ends.recv_timeout(Duration::from_secs(10)).is_ok();
    if !is_over {
        vulkan.signal(1).unwrap();
    }
    waiting.join().unwrap();
    fence.wait().unwrap();
    assert!(is_over, "it waits for ever");
    drop(order);
}
