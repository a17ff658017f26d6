//! Memory, streams and events of other code beside a runtime's: content and order, without copies, and nothing is left.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Waker},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use transload::{
    Array, ErrorKind, MemoryKind, Runtime, TransferMethod,
    cuda::{Access, CudaBackendConfig, CudaGpu, FenceEvent},
};
use transload_cuda_sim::harness::{self, EndCheck};
use transload_cuda_sys::{
    AsStream, Event, EventTiming, RelaxedCapture, Stream, StreamOptions, check, ffi, trace,
};

use crate::{elsewhere::Gate, gate::limited};

pub(crate) const COUNT: usize = 50_000;

pub(crate) struct Setup {
    pub(crate) rt: Runtime,
    pub(crate) gpu: CudaGpu,
    _end: EndCheck,
}

impl Setup {
    pub(crate) fn new() -> Self {
        let test = harness::device();
        let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
        let rt = crate::uncalibrated::builder().cuda(config).discover().unwrap();
        let gpu = rt.cuda(test.ordinal()).unwrap();
        Self { rt, gpu, _end: test.end_check() }
    }

    pub(crate) fn finish(self) {
        self.rt.drain().unwrap();
        for (name, counts) in self.rt.manager().resource_counts() {
            assert!(counts.is_empty(), "{name}: {counts}");
        }
    }
}

/// Another library: its own stream, and memory that `cuMemAlloc` gave.
struct Theirs {
    stream: Stream,
    address: u64,
    dropped: mpsc::Sender<ThreadId>,
}

impl Theirs {
    fn new(gpu: &CudaGpu) -> (Arc<Self>, mpsc::Receiver<ThreadId>) {
        let context = gpu.device().context().unwrap();
        let stream = Stream::new(context, StreamOptions::default()).unwrap();
        let (mut address, (dropped, drops)) = (0, mpsc::channel());
        // SAFETY: the out pointer is valid and the context is bound.
        let allocate = || unsafe { ffi::cuMemAlloc_v2(&mut address, COUNT * 4) };
        context.call("cuMemAlloc_v2", allocate).unwrap();
        (Arc::new(Self { stream, address, dropped }), drops)
    }

    /// Sets all elements, as a kernel of theirs would.
    fn fill(&self, value: u32) {
        let _bound = self.stream.context().enter().unwrap();
        // SAFETY: their own memory, which lives as long as `self`.
        let code = unsafe { ffi::cuMemsetD32Async(self.address, value, COUNT, self.stream.as_raw()) };
        check("cuMemsetD32Async", code).unwrap();
    }

    fn adopt(self: &Arc<Self>, gpu: &CudaGpu) -> Array<u32> {
        // SAFETY: the owner keeps the memory; the tests order their work with the array's.
        unsafe { gpu.adopt(self.address, COUNT, Arc::clone(self)) }.unwrap()
    }

    fn adopt_stream(self: &Arc<Self>, gpu: &CudaGpu) -> transload::cuda::CudaStream {
        // SAFETY: the owner keeps the stream, and nobody captures it.
        unsafe { gpu.adopt_stream(self.stream.as_raw() as usize, Arc::clone(self)) }.unwrap()
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        self.stream.synchronize().unwrap();
        let _relaxed = RelaxedCapture::enter();
        // SAFETY: allocated by `new`, and nothing uses it any more.
        let free = || unsafe { ffi::cuMemFree_v2(self.address) };
        self.stream.context().call("cuMemFree_v2", free).unwrap();
        let _nobody_listens = self.dropped.send(thread::current().id());
    }
}

#[test]
fn copies_on_their_stream_are_in_its_order_both_ways() {
    let setup = Setup::new();
    let Setup { rt, gpu, .. } = &setup;
    let (theirs, drops) = Theirs::new(gpu);
    let (array, stream) = (theirs.adopt(gpu), theirs.adopt_stream(gpu));
    let (ours, back) = (gpu.alloc::<u32>(COUNT).unwrap(), gpu.pinned::<u32>(COUNT).unwrap());
    for round in 1..20_u32 {
        // Theirs to ours: after their work, before their next. Nothing waits on the host.
        theirs.fill(round);
        let report = rt.copy(&array, &ours).on(&stream).submit();
        theirs.fill(0xDEAD);
        assert_eq!(report.wait().unwrap().method, TransferMethod::DirectCopy);
        rt.copy(&ours, &back).on(&stream).wait().unwrap();
        assert!(back.read().unwrap().iter().all(|value| *value == round));
        // Ours to theirs.
        rt.copy(&ours, &array).on(&stream).submit().wait().unwrap();
        rt.copy(&array, &back).wait().unwrap();
        assert!(back.read().unwrap().iter().all(|value| *value == round));
    }
    drop((array, stream, ours, back));
    rt.drain().unwrap();
    assert!(drops.try_recv().is_err(), "their own handle is left");
    drop(theirs);
    drops.try_recv().unwrap();
    setup.finish();
}

#[test]
fn drain_drops_the_owner_of_a_stream_that_copied() {
    let setup = Setup::new();
    let Setup { rt, gpu, .. } = &setup;
    // A copy that is complete as soon as it was submitted leaves no fence behind.
    for _ in 0..50 {
        let (theirs, drops) = Theirs::new(gpu);
        let stream = theirs.adopt_stream(gpu);
        let (ours, back) = (gpu.alloc::<u32>(COUNT).unwrap(), gpu.pinned::<u32>(COUNT).unwrap());
        rt.copy(&ours, &back).on(&stream).wait().unwrap();
        drop((theirs, stream, ours, back));
        rt.drain().unwrap();
        drops.try_recv().unwrap();
    }
    setup.finish();
}

#[test]
fn drain_drops_the_owner_of_a_stream_that_still_copies() {
    let setup = Setup::new();
    let Setup { rt, gpu, .. } = &setup;
    for _ in 0..50 {
        let (theirs, drops) = Theirs::new(gpu);
        let stream = theirs.adopt_stream(gpu);
        let (array, memory) = (theirs.adopt(gpu), gpu.memory().unwrap());
        let ours = rt.array::<u32>(memory.allocate(MemoryKind::Device, COUNT * 4).unwrap()).unwrap();
        // Nobody waits for it: the memory is kept with fences of the stream.
        drop(rt.copy(&array, &ours).on(&stream).submit());
        drop((theirs, stream, array, ours));
        rt.drain().unwrap();
        drops.try_recv().unwrap();
    }
    setup.finish();
}

#[test]
fn one_drain_frees_buffers_that_an_owner_held() {
    struct Slow {
        _held: Array<u32>,
    }
    impl Drop for Slow {
        fn drop(&mut self) {
            // Time for a drain that does not wait to go on.
            (0..10_000).for_each(|_| thread::yield_now());
        }
    }
    let setup = Setup::new();
    let Setup { rt, gpu, .. } = &setup;
    let theirs = gpu.alloc::<u32>(COUNT).unwrap();
    let address = theirs.raw().device_address().unwrap();
    // SAFETY: the owner keeps the memory, and nobody else uses it.
    let array = unsafe { gpu.adopt::<u32>(address, COUNT, Slow { _held: theirs }) }.unwrap();
    drop(rt.copy(&array, &gpu.pinned(COUNT).unwrap()).submit());
    drop(array);
    setup.finish();
}

#[test]
fn adopted_and_handed_back_without_a_copy() {
    let setup = Setup::new();
    let (theirs, drops) = Theirs::new(&setup.gpu);
    let address = theirs.address;
    let stream = theirs.adopt_stream(&setup.gpu);
    let trace = trace::start();
    let array = theirs.adopt(&setup.gpu);
    assert_eq!(array.raw().device_address(), Some(address));
    let using = array.used_on(&stream, Access::Write).unwrap();
    theirs.fill(3);
    let busy = array.slice(1..3).unwrap().used_on(&stream, Access::Read).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    let text = "bytes 4 to 12 of the allocation are in use by other code, for writing; first end the `StreamUse` (`end()`)";
    assert!(busy.to_string().starts_with(text), "{busy}");
    using.end().unwrap();
    let moved: Vec<_> =
        trace.calls_of_this_thread().into_iter().filter(|call| call.name.contains("cpy")).collect();
    assert!(moved.is_empty(), "{moved:?}");
    drop(trace);
    assert!(setup.rt.download(&array).wait().unwrap().iter().all(|value| *value == 3));
    // Their own handle first, so that the library drops the last one.
    drop((theirs, array, stream));
    setup.rt.drain().unwrap();
    assert_ne!(drops.try_recv().unwrap(), thread::current().id());
    setup.finish();
}

#[test]
fn awaited_use_blocks_no_thread() {
    let setup = Setup::new();
    let (stream, array) = (setup.gpu.stream().unwrap(), setup.gpu.alloc::<u32>(COUNT).unwrap());
    // Work that the stream cannot wait for.
    let gate = Gate::before(array.raw());
    let mut context = Context::from_waker(Waker::noop());
    let mut dropped = Box::pin(array.used_on_async(&stream, Access::Read));
    assert!(dropped.as_mut().poll(&mut context).is_pending());
    drop(dropped);
    let mut using = Box::pin(array.used_on_async(&stream, Access::Write));
    assert!(using.as_mut().poll(&mut context).is_pending());
    assert_eq!(array.used_on(&stream, Access::Read).unwrap_err().kind(), ErrorKind::Busy);
    gate.open();
    let using = pollster::block_on(using).unwrap();
    assert_eq!(setup.rt.download(&array).wait().unwrap_err().kind(), ErrorKind::Busy);
    using.end().unwrap();
    array.fill(1).unwrap();
    drop((array, stream));
    setup.finish();
}

#[test]
fn work_of_theirs_in_flight_is_waited_for() {
    let setup = Setup::new();
    let Setup { rt, gpu, .. } = &setup;
    let (theirs, _drops) = Theirs::new(gpu);
    let back = gpu.pinned::<u32>(COUNT).unwrap();
    for round in 0..20_u32 {
        theirs.fill(round);
        let fence = if round % 2 == 0 {
            theirs.adopt_stream(gpu).fence().unwrap()
        } else {
            let context = gpu.device().context().unwrap();
            let event = Event::new(context, EventTiming::Disabled).unwrap();
            event.record(&theirs.stream).unwrap();
            // SAFETY: the event is alive.
            unsafe { gpu.fence_of_event(event.as_raw() as usize) }.unwrap()
        };
        // SAFETY: the owner keeps the memory, and the fence covers its work.
        let array =
            unsafe { gpu.adopt_after::<u32>(theirs.address, COUNT, Arc::clone(&theirs), &[fence]) }.unwrap();
        rt.copy(&array, &back).wait().unwrap();
        assert!(back.read().unwrap().iter().all(|value| *value == round));
        // Their stream waits for our transfer.
        let filled = rt.copy(&back, &array).submit();
        let fence = pollster::block_on(filled.enqueued()).unwrap().unwrap();
        let event = FenceEvent::of(&fence).unwrap();
        // SAFETY: the event is alive.
        unsafe { theirs.stream.wait_raw_event(event.as_raw()) }.unwrap();
    }
    drop((back, theirs));
    setup.finish();
}

#[test]
fn fences_of_events_share_a_stream_but_no_order() {
    limited(|| {
        let setup = Setup::new();
        let gpu = &setup.gpu;
        let (idle, blocked) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let fence_after = |stream: &transload::cuda::CudaStream| {
            let event = Event::new(gpu.device().context().unwrap(), EventTiming::Disabled).unwrap();
            event.record(stream.driver()).unwrap();
            // SAFETY: the event is alive.
            unsafe { gpu.fence_of_event(event.as_raw() as usize) }.unwrap()
        };
        let trace = trace::start();
        (0..50).for_each(|_| fence_after(&idle).wait().unwrap());
        let calls = trace.calls_of_this_thread();
        let made = calls.iter().filter(|call| call.name.starts_with("cuStreamCreate")).count();
        assert_eq!(made, 1, "{calls:?}");
        let gate = crate::gate::Gate::before(gpu.device(), &[&blocked]);
        let late = fence_after(&blocked);
        fence_after(&idle).wait().unwrap();
        assert!(!late.is_complete());
        gate.open();
        late.wait().unwrap();
        drop((idle, blocked, late));
        setup.finish();
    });
}

#[test]
fn owner_may_wait_for_a_transfer_in_its_drop() {
    struct Waits {
        rt: Runtime,
        gpu: CudaGpu,
        done: Arc<AtomicUsize>,
        _theirs: Arc<Theirs>,
    }
    impl Drop for Waits {
        fn drop(&mut self) {
            let (src, dst) = (self.rt.host(vec![7_u8; 1000]).unwrap(), self.gpu.alloc::<u8>(1000).unwrap());
            self.rt.copy(&src, &dst).wait().unwrap();
            assert_eq!(*self.rt.download(&dst).wait().unwrap(), [7; 1000]);
            self.rt.drain().ok();
            self.done.fetch_add(1, Ordering::SeqCst);
        }
    }
    let setup = Setup::new();
    let Setup { rt, gpu, .. } = &setup;
    let (theirs, _drops) = Theirs::new(gpu);
    let done = Arc::new(AtomicUsize::new(0));
    for _ in 0..10 {
        let owner =
            Waits { rt: rt.clone(), gpu: gpu.clone(), done: Arc::clone(&done), _theirs: Arc::clone(&theirs) };
        // SAFETY: `theirs` keeps the memory, and nobody else uses it.
        let array = unsafe { gpu.adopt::<u32>(theirs.address, COUNT, owner) }.unwrap();
        drop(rt.copy(&array, &gpu.alloc(COUNT).unwrap()).submit());
    }
    drop(theirs);
    rt.drain().unwrap();
    assert_eq!(done.load(Ordering::SeqCst), 10);
    setup.finish();
}

#[test]
fn drain_drops_host_memory_kept_by_an_owner_of_a_device() {
    /// Takes long to drop, unless the drain has returned. Its destructor sends whether it had.
    struct Slow(Arc<AtomicUsize>, mpsc::Sender<bool>);
    /// Host memory with something else.
    struct Keeps {
        _slow: Slow,
        _array: Option<Array<u32>>,
    }
    impl AsRef<[u8]> for Keeps {
        fn as_ref(&self) -> &[u8] {
            &[1, 2, 3]
        }
    }
    impl Drop for Slow {
        fn drop(&mut self) {
            let begun = Instant::now();
            let is_drained = || self.0.load(Ordering::SeqCst) > 0;
            while !is_drained() && begun.elapsed() < Duration::from_millis(100) {
                thread::yield_now();
            }
            self.1.send(is_drained()).unwrap();
        }
    }
    let setup = Setup::new();
    let Setup { rt, gpu, .. } = &setup;
    let (theirs, _drops) = Theirs::new(gpu);
    let (drained, (dropped, drops)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel());
    let slow = || Slow(Arc::clone(&drained), dropped.clone());
    let mut kept = None;
    for _ in 0..2 {
        let owner = (slow(), rt.cpu().wrap_readonly(Keeps { _slow: slow(), _array: kept }));
        // SAFETY: `theirs` keeps the memory, and nobody else uses it.
        kept = Some(unsafe { gpu.adopt::<u32>(theirs.address, COUNT, owner) }.unwrap());
    }
    drop(kept);
    rt.drain().unwrap();
    drained.store(1, Ordering::SeqCst);
    for _ in 0..4 {
        assert_eq!(drops.recv_timeout(Duration::from_secs(10)), Ok(false));
    }
    drop(theirs);
    setup.finish();
}

#[test]
fn wrong_addresses_are_errors_and_drop_the_owner() {
    let setup = Setup::new();
    let gpu = &setup.gpu;
    let (theirs, drops) = Theirs::new(gpu);
    let address = theirs.address;
    let on_host = [0_u8; 64];
    let most = format!("the CUDA driver knows at most {} bytes from there", COUNT * 4);
    for (address, len, text) in [
        (0, 1, "the null address"),
        (address + 1, 1, "valid are multiples of 8 bytes"),
        (address, 0, "0 elements of 8 bytes"),
        (address, COUNT, &most),
        (address, usize::MAX, "expected 1 to"),
        (u64::MAX - 7, 1, "address space"),
        (on_host.as_ptr() as u64, 8, "valid is what it allocated or registered"),
    ] {
        // SAFETY: it is refused.
        let refused = unsafe { gpu.adopt::<u64>(address, len, Arc::clone(&theirs)) };
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{len} at {address:#x}");
        assert!(error.to_string().contains(text), "`{text}` is not in: {error}");
    }
    drop(theirs);
    setup.rt.drain().unwrap();
    drops.try_recv().unwrap();
    setup.finish();
}
