//! Signals of CUDA's streams that fail. On the software driver, whose streams signal to a list.

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
    let before = vec![Before { by, semaphore: semaphore(), vulkan, value: 0, point: 0 }];
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
