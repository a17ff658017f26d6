//! A registration dropped while another thread submits work on its buffer stays until that work completes.

use std::sync::{
    Arc, Mutex,
    mpsc::{Receiver, Sender, channel},
};

use transload_core::{
    DeviceId, Fence, MemoryKind, Operation, Place, Queue, Result, StreamPriority, Timeline, Timing, submit,
};
use transload_memory::{CudaDevice, CudaMemoryManager, RegistrationCache};
use transload_streams::CudaStream;

use crate::{builder, partial_copies::heap, within};

/// A stream whose `enqueue` blocks until the test lets it continue.
struct PausingQueue {
    stream: CudaStream,
    entered: Mutex<Sender<()>>,
    proceed: Mutex<Receiver<()>>,
}

// SAFETY: every method forwards to the stream.
unsafe impl Queue for PausingQueue {
    fn device(&self) -> DeviceId {
        Queue::device(&self.stream)
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
        self.entered.lock().unwrap().send(()).unwrap();
        self.proceed.lock().unwrap().recv().unwrap();
        // SAFETY: the caller's promise.
        unsafe { self.stream.enqueue(operation, after, timing) }
    }

    fn outstanding(&self) -> u64 {
        self.stream.outstanding()
    }
}

#[test]
fn registration_dropped_during_a_submission_stays_until_then() {
    const BYTES: usize = 100_000;
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
        let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
        let (source, _) = heap::heap(BYTES, true);
        let there = memory.allocate(MemoryKind::Device, BYTES).unwrap();
        drop(cache.register(&source).unwrap());
        assert_eq!(sim.live_objects().registered, 1);
        let ((entered, is_entered), (proceed, may_proceed)) = (channel(), channel());
        let queue = PausingQueue {
            stream: CudaStream::new(&device).unwrap(),
            entered: Mutex::new(entered),
            proceed: Mutex::new(may_proceed),
        };
        std::thread::scope(|scope| {
            let submitting =
                scope.spawn(|| submit(&queue, &Operation::Copy { src: &source, dst: &there }, Timing::Off));
            is_entered.recv().unwrap();
            drop(cache);
            let parked = memory.resource_counts().pending_free;
            let registered = sim.live_objects().registered;
            proceed.send(()).unwrap();
            submitting.join().unwrap().unwrap().wait().unwrap();
            assert_eq!((parked, registered), (1, 1), "the submission may already use the registered bytes");
        });
        memory.drain().unwrap();
        assert_eq!(sim.live_objects().registered, 0);
        drop((queue, source, there));
        memory.drain().unwrap();
        drop((memory, device));
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
        assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
    });
}
