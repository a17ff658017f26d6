//! A registration ends only while nothing uses its buffer, whatever is submitted after it was dropped.

use std::{
    ffi::c_void,
    sync::{Arc, Condvar, Mutex},
    thread,
};

use transload_core::{Access, Claims, MemoryKind, RawBuffer, TrySubmitError, Turns};
use transload_cuda_sim::{SimDevice, harness::Checked};
use transload_cuda_sys::{AsStream, Context, Device, Stream, StreamOptions, ffi};
use transload_memory::{CudaDevice, CudaMemoryManager, RegistrationCache};

use crate::{builder, gate::Gate, heap::heap};

const BYTES: usize = 100_000;

struct Fixture {
    memory: Arc<CudaMemoryManager>,
    cache: RegistrationCache,
    context: Context,
    buffer: RawBuffer,
    /// Dropped last.
    sim: Checked,
}

impl Fixture {
    /// The buffer is registered, and no handle of that is left.
    fn new(seed: u64) -> Self {
        let sim = builder().seed(seed).record_accesses(true).checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = Arc::new(CudaMemoryManager::new(&device).unwrap());
        let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
        let context = Context::primary(Device::new(sim.ordinal()).unwrap()).unwrap();
        let (buffer, _) = heap(BYTES, true);
        drop(cache.register_source(&buffer).unwrap());
        Self { memory, cache, context, buffer, sim }
    }
}

/// A copy from a buffer that the device makes when its stream is waited for.
struct PendingCopy {
    stream: Stream,
    done: Gate,
}

impl PendingCopy {
    fn enqueue(context: &Context, src: &RawBuffer, dst: &RawBuffer) -> Self {
        let (stream, done) = (Stream::new(context, StreamOptions::default()).unwrap(), Gate::new());
        let claims = Claims::acquire(&mut [(src, Access::Read), (dst, Access::Write)]).unwrap();
        assert!(claims.after().is_empty());
        let (from, to) = (src.host_address().unwrap(), dst.device_address().unwrap());
        // SAFETY: both have as many bytes, and the claims order the copy with other users, who wait for the gate.
        let copy = || unsafe { ffi::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), BYTES, stream.as_raw()) };
        context.call("cuMemcpyHtoDAsync_v2", copy).unwrap();
        // SAFETY: the gate is opened after the copy, and nothing came before it.
        unsafe { claims.commit(&done.fence()) };
        Self { stream, done }
    }

    fn finish(self) {
        self.stream.synchronize().unwrap();
        self.done.open();
    }
}

#[test]
fn copy_submitted_after_its_cache_was_dropped_keeps_the_registration() {
    for seed in 0..8 {
        let Fixture { memory, cache, context, buffer, sim } = Fixture::new(seed);
        let there = memory.allocate(MemoryKind::Device, BYTES).unwrap();
        let first = Gate::new();
        let claims = Claims::acquire(&mut [(&buffer, Access::Read)]).unwrap();
        // SAFETY: no work touches the bytes, and none came before it.
        unsafe { claims.commit(&first.fence()) };
        drop(cache);
        let second = PendingCopy::enqueue(&context, &buffer, &there);
        first.open();
        memory.release_cached().unwrap();
        let left = (sim.live_objects().registered, memory.resource_counts().pending_free);
        assert_eq!(left, (1, 1), "the second copy reads the registered bytes, seed {seed}");
        second.finish();
        memory.drain().unwrap();
        assert_eq!(sim.live_objects().registered, 0);
        drop((buffer, there));
        memory.drain().unwrap();
        drop((memory, context));
        assert!(sim.races().is_empty(), "{}", sim.races()[0]);
    }
}

#[derive(Default)]
struct Door {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Door {
    /// Blocks what comes later in the stream.
    fn before(context: &Context, stream: &Stream) -> &'static Self {
        let door: &Self = Box::leak(Box::default());
        let data = std::ptr::from_ref(door).cast_mut().cast();
        // SAFETY: the door is never freed.
        let launch = || unsafe { ffi::cuLaunchHostFunc(stream.as_raw(), Some(stand), data) };
        context.call("cuLaunchHostFunc", launch).unwrap();
        door
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

unsafe extern "C" fn stand(data: *mut c_void) {
    // SAFETY: the data is a door that is never freed.
    let door = unsafe { &*data.cast::<Door>() };
    let is_open = door.is_open.lock().unwrap();
    drop(door.changed.wait_while(is_open, |is_open| !*is_open).unwrap());
}

/// Blocks until a thread that ends the registration waits in the driver. Returns `false` if it did not wait.
fn waits_in_driver(sim: SimDevice) -> bool {
    loop {
        // A thread that waits for the device runs the host function.
        match (sim.live_objects().registered, sim.queued()) {
            (0, _) => return false,
            (_, 0) => return true,
            _ => thread::yield_now(),
        }
    }
}

#[test]
fn no_work_is_submitted_while_a_registration_ends() {
    let mut waits = [0; 2];
    for (index, waits) in waits.iter_mut().enumerate() {
        for seed in 0..6 {
            let Fixture { memory, cache, context, buffer, sim } = Fixture::new(seed);
            let stream = Stream::new(&context, StreamOptions::default()).unwrap();
            let door = Door::before(&context, &stream);
            let trimming = if index == 0 {
                Some(thread::spawn(move || assert_eq!(cache.trim().unwrap(), BYTES as u64)))
            } else {
                drop(cache);
                None
            };
            if waits_in_driver(*sim) {
                *waits += 1;
                let submitted = Claims::try_acquire(&mut [(&buffer, Access::Read)], &Turns::default());
                let is_blocked = matches!(submitted, Err(TrySubmitError::WouldBlock(_)));
                drop(submitted);
                door.open();
                assert!(is_blocked, "a copy of the bytes could be submitted, seed {seed}");
            }
            door.open();
            trimming.into_iter().for_each(|thread| thread.join().unwrap());
            memory.drain().unwrap();
            stream.synchronize().unwrap();
            drop(Claims::acquire(&mut [(&buffer, Access::Write)]).unwrap());
            assert_eq!(sim.live_objects().registered, 0);
            drop((memory, stream, context));
        }
    }
    assert!(waits.iter().all(|waits| *waits > 0), "no seed had the driver wait: {waits:?}");
}
