//! Frees that synchronise with the device are deferred while a stream waits for the host, and no one waits for them
//! forever. A process of its own: deferrals apply to all of it.
#![cfg(any(target_os = "linux", windows))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail their tests")]

#[path = "../../core/tests/shared/gate.rs"]
mod gate;

use std::{
    ffi::c_void,
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{Receiver, channel},
    },
    thread,
    time::Duration,
};

use transload_core::{
    Access, Buffer as _, DeviceId, Error, ErrorKind, Fence, HostBytes, MemoryKind, Operation, Place, Queue,
    QueueLease, RawBuffer, Reclaimer, Result, StreamPriority, Timeline, Timing, TryLockResult,
};
use transload_cuda_sim::{SimDevice, harness};
use transload_cuda_sys::{AsStream, Context, Device, Stream, StreamOptions, check, ffi};
use transload_memory::{
    CudaDevice, CudaMemoryManager, FreeDeferral, RegistrationCache, UnifiedBuffer, UnifiedMode,
};

use gate::Gate;

const LIMIT: Duration = Duration::from_secs(30);

/// Deferrals apply to the process, so a test with one runs alone.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn aside<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, is_done) = channel();
    thread::spawn(move || {
        let _test_is_over = done.send(call());
    });
    is_done
}

#[test]
fn allocation_short_of_memory_does_not_wait_for_deferred_frees() {
    let _alone = alone();
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().memory_pools(false).total_memory(8 << 20).build();
    let memory = CudaMemoryManager::new(&CudaDevice::new(sim.ordinal()).unwrap()).unwrap();
    let deferral = FreeDeferral::begin();
    drop(memory.allocate(MemoryKind::Device, 6 << 20).unwrap());
    let asked = aside(move || (memory.allocate(MemoryKind::Device, 6 << 20).map(drop), memory));
    let (refused, memory) =
        asked.recv_timeout(LIMIT).expect("the allocation waits for a free that waits for us");
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(sim.live_objects().device_allocations, 1, "it is not freed while frees are put off");
    drop(deferral);
    let again = memory.allocate(MemoryKind::Device, 6 << 20).unwrap();
    drop(again);
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    drop(memory);
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

#[test]
fn drain_waits_for_the_last_deferral_to_end() {
    let _alone = alone();
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().build();
    let memory = CudaMemoryManager::new(&CudaDevice::new(sim.ordinal()).unwrap()).unwrap();
    let (first, second) = (FreeDeferral::begin(), FreeDeferral::begin());
    for kind in [MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Unified] {
        drop(memory.allocate(kind, 5000).unwrap());
    }
    let drained = aside(move || {
        memory.drain().unwrap();
        (memory.resource_counts(), memory)
    });
    drop(first);
    assert!(drained.recv_timeout(Duration::from_millis(100)).is_err(), "one deferral is left");
    assert_eq!((sim.live_objects().pinned, sim.live_objects().managed), (2, 1));
    drop(second);
    let (ledger, memory) = drained.recv_timeout(LIMIT).expect("drained");
    assert!(ledger.is_empty(), "{ledger}");
    drop(memory);
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

#[test]
fn waiting_free_goes_before_later_optional_deferrals() {
    let _alone = alone();
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().build();
    let memory = CudaMemoryManager::new(&CudaDevice::new(sim.ordinal()).unwrap()).unwrap();
    let (first, second) = (FreeDeferral::try_begin().unwrap(), FreeDeferral::try_begin().unwrap());
    drop(memory.allocate(MemoryKind::Pinned, 5000).unwrap());
    while FreeDeferral::can_begin() {
        std::thread::yield_now();
    }
    assert!(FreeDeferral::try_begin().is_none());
    drop((first, second));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty());
    assert!(FreeDeferral::can_begin());
}

#[derive(Default)]
struct Door {
    is_open: Mutex<bool>,
    changed: Condvar,
}

unsafe extern "C" fn stand(data: *mut c_void) {
    // SAFETY: the data is a gate that is never freed.
    let door = unsafe { &*data.cast::<Door>() };
    let is_open = door.is_open.lock().unwrap();
    drop(door.changed.wait_timeout_while(is_open, LIMIT, |is_open| !*is_open).unwrap());
}

#[test]
fn deferral_begins_after_running_frees() {
    let _alone = alone();
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().build();
    let memory = CudaMemoryManager::new(&CudaDevice::new(sim.ordinal()).unwrap()).unwrap();
    let context = Context::primary(Device::new(sim.ordinal()).unwrap()).unwrap();
    let stream = Stream::new(&context, StreamOptions::default()).unwrap();
    let door: &Door = Box::leak(Box::default());
    let buffer = memory.allocate(MemoryKind::Pinned, 5000).unwrap();
    {
        let _bound = context.enter().unwrap();
        let data = std::ptr::from_ref(door).cast_mut().cast();
        // SAFETY: the gate is never freed.
        check("launch", unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(stand), data) }).unwrap();
    }
    drop(buffer);
    // The free thread runs the host function, like any thread that waits for the device.
    while sim.queued() > 0 {
        thread::yield_now();
    }
    let begun = aside(FreeDeferral::begin);
    assert!(begun.recv_timeout(Duration::from_millis(100)).is_err(), "a free is in the driver");
    *door.is_open.lock().unwrap() = true;
    door.changed.notify_all();
    drop(begun.recv_timeout(LIMIT).expect("the free is done"));
    stream.synchronize().unwrap();
    memory.drain().unwrap();
    drop((memory, stream, context));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

/// A stream blocked by a host function, which runs on the thread that waits for the stream.
fn behind_a_door(context: &Context) -> (&'static Door, Receiver<()>) {
    let stream = Stream::new(context, StreamOptions::default()).unwrap();
    let door: &Door = Box::leak(Box::default());
    {
        let _bound = context.enter().unwrap();
        let data = std::ptr::from_ref(door).cast_mut().cast();
        // SAFETY: the gate is never freed.
        check("launch", unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(stand), data) }).unwrap();
    }
    (door, aside(move || stream.synchronize().unwrap()))
}

#[test]
fn no_registration_ends_while_frees_are_deferred() {
    let _alone = alone();
    let test = harness::device();
    let check = test.end_check();
    let memory = Arc::new(CudaMemoryManager::new(&CudaDevice::new(test.ordinal()).unwrap()).unwrap());
    let context = Context::primary(Device::new(test.ordinal()).unwrap()).unwrap();
    let cache = Arc::new(RegistrationCache::new(&memory, BYTES as u64).unwrap());
    let (first, second) = (plain(), plain());
    drop(cache.register(&first).unwrap());
    let deferral = FreeDeferral::begin();
    let (door, let_through) = behind_a_door(&context);
    let (theirs, of_first, of_second) = (Arc::clone(&cache), first.clone(), second.clone());
    let asked = aside(move || {
        let forgotten = theirs.forget(&of_first).map_err(|error| error.kind());
        let trimmed = theirs.trim().unwrap();
        (forgotten, trimmed, theirs.register(&of_second).map(drop).map_err(|error| error.kind()))
    });
    let refused = asked.recv_timeout(LIMIT / 2).expect("the end of a registration waits for the device");
    assert_eq!(refused, (Err(ErrorKind::Busy), 0, Err(ErrorKind::OutOfMemory)));
    *door.is_open.lock().unwrap() = true;
    door.changed.notify_all();
    let_through.recv_timeout(LIMIT).expect("the stream goes on");
    drop(deferral);
    drop(cache.register(&second).expect("there is room once the first may end"));
    cache.forget(&second).unwrap();
    assert_eq!(cache.statistics().registrations, 0);
    drop((cache, first, second));
    memory.drain().unwrap();
    drop((memory, context));
    drop(check);
}

#[test]
fn idle_registrations_end_after_the_last_deferral() {
    let _alone = alone();
    let test = harness::device();
    let check = test.end_check();
    let memory = Arc::new(CudaMemoryManager::new(&CudaDevice::new(test.ordinal()).unwrap()).unwrap());
    let cache = Arc::new(RegistrationCache::new(&memory, 2 * BYTES as u64).unwrap());
    let buffers = [plain(), plain()];
    for call in [RegistrationCache::drain, RegistrationCache::trim] {
        buffers.iter().for_each(|buffer| drop(cache.register(buffer).unwrap()));
        let in_use = cache.register(&buffers[1]).unwrap();
        let (deferral, theirs) = (FreeDeferral::begin(), Arc::clone(&cache));
        let ended = aside(move || call(&theirs));
        assert!(ended.recv_timeout(Duration::from_millis(100)).is_err(), "a deferral is left");
        // Meanwhile no registration is busy, so its users do not wait for a deferral that may wait for them.
        assert_eq!(cache.forget(&buffers[0]).unwrap_err().kind(), ErrorKind::Busy);
        drop(cache.register(&buffers[0]).unwrap());
        drop(deferral);
        assert_eq!(ended.recv_timeout(LIMIT).expect("no deferral is left").unwrap(), BYTES as u64);
        assert_eq!(cache.statistics().registrations, 1);
        drop(in_use);
        assert_eq!(call(&cache).unwrap(), BYTES as u64);
    }
    drop((cache, buffers));
    memory.drain().unwrap();
    drop(memory);
    drop(check);
}

/// Work may be submitted between the drop of a registration and its end, also while a drain waits.
#[test]
fn deferred_end_of_a_registration_waits_for_later_work() {
    let _alone = alone();
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().build();
    let memory = Arc::new(CudaMemoryManager::new(&CudaDevice::new(sim.ordinal()).unwrap()).unwrap());
    let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
    let buffer = plain();
    drop(cache.register(&buffer).unwrap());
    let deferral = FreeDeferral::begin();
    drop(cache);
    // The end waits for the deferral.
    while FreeDeferral::can_begin() {
        thread::yield_now();
    }
    let work = Gate::before(&buffer);
    let theirs = Arc::clone(&memory);
    let drained = aside(move || theirs.drain());
    drop(deferral);
    while sim.live_objects().registered == 1 && memory.resource_counts().pending_free == 0 {
        thread::yield_now();
    }
    assert_eq!(sim.live_objects().registered, 1, "the registration ended under later work");
    work.open();
    drained.recv_timeout(LIMIT).expect("drained").unwrap();
    assert_eq!((sim.live_objects().registered, memory.resource_counts().pending_free), (0, 0));
}

/// A queue that refuses uploads, and does nothing else.
struct RefusingQueue {
    device: DeviceId,
    timeline: Arc<dyn Timeline>,
    complete: Fence,
}

impl RefusingQueue {
    fn new(device: DeviceId) -> Self {
        let gate = Gate::new();
        gate.open();
        let complete = gate.fence();
        Self { device, timeline: Arc::clone(complete.timeline()), complete }
    }
}

// SAFETY: it enqueues nothing.
unsafe impl Queue for RefusingQueue {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn priority(&self) -> StreamPriority {
        StreamPriority::default()
    }

    fn timeline(&self) -> &Arc<dyn Timeline> {
        &self.timeline
    }

    fn can_copy(&self, _: Place, _: Place) -> bool {
        true
    }

    fn can_wait_for(&self, _: &Fence) -> bool {
        false
    }

    unsafe fn enqueue(&self, operation: &Operation<'_>, _: &[Fence], _: Timing) -> Result<Fence> {
        match operation {
            Operation::Copy { src, .. } if src.place().device.is_cpu() => {
                Err(Error::new(ErrorKind::Device, "it uploads nothing"))
            }
            _ => Ok(self.complete.clone()),
        }
    }

    fn outstanding(&self) -> u64 {
        0
    }
}

/// The deferral keeps the source's end, which waits for the device, from hiding an early release.
#[test]
fn upload_of_a_dropped_buffer_holds_it_although_waits_fail() {
    /// `CUDA_ERROR_OPERATING_SYSTEM`.
    const OPERATING_SYSTEM: u32 = 304;
    let _alone = alone();
    transload_cuda_sim::install().unwrap();
    let sim = SimDevice::builder().record_accesses(true).build();
    let device = CudaDevice::new(sim.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let queue = QueueLease::new(Arc::new(RefusingQueue::new(device.id())));
    let buffer = UnifiedBuffer::<u8>::new_with_mode(&memory, queue, BYTES, UnifiedMode::Explicit).unwrap();
    let there = buffer.raw().clone();
    buffer.write().unwrap().fill(7);
    let deferral = FreeDeferral::begin();
    for nth in [1, 2] {
        sim.fail_call(Some("cuStreamSynchronize"), nth, OPERATING_SYSTEM);
    }
    drop(buffer);
    let hold = loop {
        match there.try_lock_range(Access::Read) {
            Ok(TryLockResult::Locked(hold)) => break hold,
            Ok(TryLockResult::Blocked(_)) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
        }
        thread::yield_now();
    };
    assert_eq!(sim.queued(), 0, "the bytes were released before the device wrote them");
    let mut back = vec![0_u8; BYTES];
    let context = Context::primary(Device::new(sim.ordinal()).unwrap()).unwrap();
    // SAFETY: both have as many bytes, and the guard excludes writers.
    let read =
        || unsafe { ffi::cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), there.device_address().unwrap(), BYTES) };
    context.call("cuMemcpyDtoH_v2", read).unwrap();
    assert!(back.iter().all(|byte| *byte == 7));
    drop((hold, deferral, there));
    memory.drain().unwrap();
    drop((memory, device, context));
    assert!(sim.races().is_empty(), "{}", sim.races()[0]);
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

const BYTES: usize = 1 << 20;

fn plain() -> RawBuffer {
    let storage = HeapBytes(vec![0_u8; BYTES].into_boxed_slice());
    let address = std::ptr::NonNull::from(&*storage.0).cast();
    // SAFETY: the box owns the bytes, which have no other user.
    let bytes = unsafe { HostBytes::new(storage, address, BYTES, MemoryKind::Pageable, true) };
    RawBuffer::new(Box::new(bytes), &Arc::new(Reclaimer::new()))
}

/// The bytes of a buffer on the heap.
struct HeapBytes(Box<[u8]>);
