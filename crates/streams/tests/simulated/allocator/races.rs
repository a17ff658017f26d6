//! Streams and allocators that come and go while others take their memory: nobody gets memory that is still in use.

use std::{
    any::Any,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    task::Waker,
};

use transload_core::{
    Access, Claims, DeviceId, Error, ErrorKind, Fence, MemoryInfo, MemoryKind, MemoryShortage, Pattern,
    Place, RawBuffer, Result, Timeline, TimelineId,
};
use transload_cuda_sim::SimDevice;
use transload_cuda_sys::{AsStream, check, ffi};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource, LimitingResource, MemoryResource};
use transload_streams::{CudaStream, StreamBlock, StreamOrderedAllocator};

use crate::{builder, within};

const MIB: usize = 1 << 20;
const QUARTER: usize = MIB / 4;

pub(crate) fn allocator(memory: &Arc<CudaMemoryManager>) -> StreamOrderedAllocator {
    let upstream = CudaResource::new(memory, MemoryKind::Device).unwrap();
    let builder = StreamOrderedAllocator::builder(upstream).segments(MIB as u64, MIB as u64);
    builder.limit(MIB as u64).build().unwrap()
}

pub(crate) fn bed(sim: &SimDevice) -> (CudaDevice, Arc<CudaMemoryManager>) {
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
    (device, memory)
}

pub(crate) fn fill(stream: &CudaStream, block: StreamBlock) {
    let _bound = stream.context().enter().unwrap();
    // SAFETY: the block is live; where its order is wrong, that is what the test is about.
    let code = unsafe { ffi::cuMemsetD8Async(block.address(), 1, block.bytes() as usize, stream.as_raw()) };
    check("cuMemsetD8Async", code).unwrap();
}

type Act = Box<dyn FnOnce() + Send>;

/// A timeline that never ends, and does something when it is asked the nth time.
pub(crate) struct Asked {
    id: TimelineId,
    act: Mutex<Option<(u32, Act)>>,
}

impl Asked {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { id: transload_core::next_timeline_id(), act: Mutex::new(None) })
    }

    /// Makes it a use of the buffer.
    pub(crate) fn uses(self: &Arc<Self>, buffer: &RawBuffer) {
        let claims = Claims::acquire(&mut [(buffer, Access::Write)]).unwrap();
        // SAFETY: nothing runs.
        unsafe { claims.commit(&Fence::new(Arc::clone(self) as Arc<dyn Timeline>, 1)) };
    }

    pub(crate) fn act_at(&self, nth: u32, act: impl FnOnce() + Send + 'static) {
        *self.act.lock().unwrap() = Some((nth, Box::new(act)));
    }
}

// SAFETY: what it says of its work is what the test wants: no memory is used behind its back.
unsafe impl Timeline for Asked {
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
        panic!("nobody but its owner ends it, so nobody may wait for it here")
    }

    fn wake_at(&self, _point: u64, _waker: &Waker) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[test]
fn memory_of_a_stream_that_is_new_since_the_others_were_collected_is_not_gathered_without_a_wait() {
    within(|| {
        for nth in 1..6 {
            let sim = builder().record_accesses(true).build(); // Foreign work that never ends keeps memory.
            let (device, memory) = bed(&sim);
            let allocator = allocator(&memory);
            let [one, two, three] = [(); 3].map(|()| CudaStream::new(&device).unwrap());
            let gated = allocator.allocate_buffer(&one, QUARTER / 2).unwrap();
            let _between = allocator.allocate_buffer(&one, QUARTER / 2).unwrap();
            let held = allocator.allocate_buffer(&one, 3 * QUARTER).unwrap();
            let asked = Asked::new();
            asked.uses(&gated);
            drop(gated);
            asked.act_at(nth, {
                let (allocator, three) = (allocator.clone(), three.clone());
                move || {
                    drop(held);
                    if let Ok(buffer) = allocator.allocate_buffer(&three, 3 * QUARTER) {
                        for value in 0..20 {
                            drop(three.memset_async(&buffer, Pattern::U8(value)));
                        }
                    }
                }
            });
            if let Ok(buffer) = allocator.allocate_buffer(&two, 3 * QUARTER) {
                drop(two.memset_async(&buffer, Pattern::U8(2)));
            }
            two.synchronize().unwrap();
            three.synchronize().unwrap();
            let races = sim.races();
            assert!(races.is_empty(), "asked {nth} times: {}", races[0]);
        }
    });
}

#[test]
fn a_request_that_only_another_backends_work_stands_in_the_way_of_is_refused_rather_than_held_up() {
    within(|| {
        let sim = builder().build(); // Foreign work that never ends keeps memory.
        let (device, memory) = bed(&sim);
        let allocator = allocator(&memory);
        let stream = CudaStream::new(&device).unwrap();
        let buffer = allocator.allocate_buffer(&stream, MIB).unwrap();
        let asked = Asked::new();
        asked.uses(&buffer);
        drop(buffer);
        let error = allocator.allocate_for_stream(&stream, MIB).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    });
}

/// Waits until both threads are here.
pub(crate) fn meet(at: &AtomicU32) {
    at.fetch_add(1, Ordering::SeqCst);
    let mut turns = 0_u32;
    while at.load(Ordering::SeqCst) < 2 {
        turns = turns.saturating_add(1);
        // The other may need this processor to come here at all.
        if turns < 1000 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

fn idle_for(turns: u32) {
    (0..turns).for_each(|_| std::hint::spin_loop());
}

#[test]
fn a_block_freed_while_the_last_handle_of_a_recorded_user_is_dropped_waits_for_that_users_work() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (device, memory) = bed(&sim);
        let allocator = allocator(&memory);
        let own = CudaStream::new(&device).unwrap();
        for round in 0..1500 {
            let user = CudaStream::new(&device).unwrap();
            let block = allocator.allocate_for_stream(&own, MIB).unwrap();
            fill(&user, block);
            allocator.record_use(block, &user).unwrap();
            let at = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let user = user;
                    meet(&at);
                    drop(user);
                });
                meet(&at);
                idle_for((round % 40) * 20);
                allocator.free_for_stream(block, &own).unwrap();
            });
            let next = allocator.allocate_for_stream(&own, MIB).unwrap();
            fill(&own, next);
            allocator.free_for_stream(next, &own).unwrap();
            own.synchronize().unwrap();
            let races = sim.races();
            assert!(races.is_empty(), "round {round}: {}", races[0]);
        }
    });
}

#[test]
fn memory_of_an_allocator_and_a_stream_dropped_at_once_goes_back_behind_the_streams_work() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (device, memory) = bed(&sim);
        for round in 0..2000_u32 {
            let allocator = allocator(&memory);
            let user = CudaStream::new(&device).unwrap();
            let buffer = allocator.allocate_buffer(&user, MIB).unwrap();
            for value in 0..6 {
                drop(user.memset_async(&buffer, Pattern::U8(value)));
            }
            drop(buffer);
            let at = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let user = user;
                    meet(&at);
                    idle_for(round / 40 % 40);
                    drop(user);
                });
                meet(&at);
                idle_for(round % 40);
                drop(allocator);
            });
            let races = sim.races();
            assert!(races.is_empty(), "round {round}: {}", races[0]);
            memory.drain().unwrap();
        }
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    });
}

#[test]
fn what_a_limited_resource_gave_is_back_after_the_managers_drain_also_when_the_resource_is_gone() {
    within(|| {
        let sim = builder().checked();
        let (device, memory) = bed(&sim);
        let upstream =
            LimitingResource::new(CudaResource::new(&memory, MemoryKind::Device).unwrap(), 64 << 20);
        let allocator = StreamOrderedAllocator::new(upstream);
        let stream = CudaStream::new(&device).unwrap();
        let buffer = allocator.allocate_buffer(&stream, MIB).unwrap();
        for value in 0..20 {
            drop(stream.memset_async(&buffer, Pattern::U8(value)));
        }
        drop((buffer, stream, allocator));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    });
}

/// A resource that asks an allocator for memory of its own, once, while it is asked for a segment; it has none to give.
struct Recursive {
    of: CudaResource,
    asks: Mutex<Option<(StreamOrderedAllocator, CudaStream)>>,
}

// SAFETY: it gives no segment.
unsafe impl MemoryResource for Recursive {
    fn place(&self) -> Place {
        self.of.place()
    }

    fn device(&self) -> Option<DeviceId> {
        self.of.device()
    }

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        let asks = self.asks.lock().unwrap().take();
        if let Some((allocator, stream)) = asks {
            assert!(allocator.allocate_for_stream(&stream, bytes).is_err());
        }
        let shortage = MemoryShortage { requested: bytes as u64, free: None, total: None };
        Err(Error::out_of_memory(self.place(), shortage))
    }

    fn trim(&self) -> Result<()> {
        Ok(())
    }

    fn info(&self) -> Result<MemoryInfo> {
        self.of.info()
    }
}

#[test]
fn a_request_from_within_the_upstream_resource_does_not_wait_for_its_own_thread() {
    within(|| {
        let sim = builder().checked();
        let (device, memory) = bed(&sim);
        let of = CudaResource::new(&memory, MemoryKind::Device).unwrap();
        let recursive = Arc::new(Recursive { of, asks: Mutex::new(None) });
        let allocator = StreamOrderedAllocator::new(Arc::clone(&recursive));
        let stream = CudaStream::new(&device).unwrap();
        *recursive.asks.lock().unwrap() = Some((allocator.clone(), stream.clone()));
        let error = allocator.allocate_for_stream(&stream, MIB).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(recursive.asks.lock().unwrap().is_none(), "it asked");
    });
}
