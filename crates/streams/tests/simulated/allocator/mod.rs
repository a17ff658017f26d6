//! The allocator on a driver that fails, is slow, or checks for races.

mod failures;
mod races;
mod random;
mod released_streams;
mod stream_lifetimes;
mod used_during_release;

use std::{
    any::Any,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    task::Waker,
};

use transload_core::{Access, Claims, DeviceId, Fence, MemoryKind, RawBuffer, Result, Timeline, TimelineId};
use transload_cuda_sim::SimDevice;
use transload_cuda_sys::{AsStream, check, ffi};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
use transload_streams::{CudaStream, StreamBlock, StreamOrderedAllocator};

const MIB: usize = 1 << 20;
pub(crate) fn allocator(memory: &Arc<CudaMemoryManager>) -> StreamOrderedAllocator {
    let upstream = CudaResource::new(memory, MemoryKind::Device).unwrap();
    let builder = StreamOrderedAllocator::builder(upstream).segments(MIB as u64, MIB as u64);
    builder.limit(MIB as u64).build().unwrap()
}

pub(crate) fn fixture(sim: &SimDevice) -> (CudaDevice, Arc<CudaMemoryManager>) {
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
    (device, memory)
}

pub(crate) fn fill(stream: &CudaStream, block: StreamBlock) {
    let _bound = stream.context().enter().unwrap();
    // SAFETY: the block is live; a wrong order is what the test looks for.
    let code = unsafe { ffi::cuMemsetD8Async(block.address(), 1, block.bytes() as usize, stream.as_raw()) };
    check("cuMemsetD8Async", code).unwrap();
}

type Action = Box<dyn FnOnce() + Send>;

/// A timeline that never completes, and runs an action at its nth poll.
pub(crate) struct PollHook {
    id: TimelineId,
    act: Mutex<Option<(u32, Action)>>,
}

impl PollHook {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { id: transload_core::next_timeline_id(), act: Mutex::new(None) })
    }

    /// Commits it as a use of the buffer.
    pub(crate) fn uses(self: &Arc<Self>, buffer: &RawBuffer) {
        let claims = Claims::acquire(&mut [(buffer, Access::Write)]).unwrap();
        // SAFETY: nothing runs.
        unsafe { claims.commit(&Fence::new(Arc::clone(self) as Arc<dyn Timeline>, 1)) };
    }

    pub(crate) fn run_at(&self, nth: u32, act: impl FnOnce() + Send + 'static) {
        *self.act.lock().unwrap() = Some((nth, Box::new(act)));
    }
}

// SAFETY: no work has its points, so no memory is used.
unsafe impl Timeline for PollHook {
    fn id(&self) -> TimelineId {
        self.id
    }

    fn device(&self) -> DeviceId {
        DeviceId::Cpu
    }

    fn reached(&self) -> u64 {
        0
    }

    fn poll(&self, _point: u64) -> Result<bool> {
        let mut act = self.act.lock().unwrap();
        if let Some((left, _)) = act.as_mut() {
            *left -= 1;
        }
        let due = act.take_if(|(left, _)| *left == 0);
        drop(act);
        if let Some((_, act)) = due {
            act();
        }
        Ok(false)
    }

    fn wait(&self, _point: u64) -> Result<()> {
        panic!("it never completes, so it must not be waited for")
    }

    fn wake_at(&self, _point: u64, _waker: &Waker) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Waits until both threads have called this.
pub(crate) fn rendezvous(at: &AtomicU32) {
    at.fetch_add(1, Ordering::SeqCst);
    let mut turns = 0_u32;
    while at.load(Ordering::SeqCst) < 2 {
        turns = turns.saturating_add(1);
        // The other thread may need this processor.
        if turns < 1000 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

pub(crate) fn spin(turns: u32) {
    (0..turns).for_each(|_| std::hint::spin_loop());
}
