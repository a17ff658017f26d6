//! Streams and events of other owners: order with their work, who drops the owner, and ours handed out.

use std::{
    ptr,
    sync::mpsc,
    thread::{self, ThreadId},
};

use transload_core::{Access, ErrorKind, MemoryKind, Pattern, StreamPriority};
use transload_cuda_sim::harness;
use transload_cuda_sys::{
    AsStream, Capture, CaptureMode, Context, Event, EventTiming, Stream, StreamOptions, check, ffi,
};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::{CudaStream, FenceEvent, StreamOrderedAllocator};

use crate::{
    allocator::Fixture,
    support::{
        gate::{Gate, limited},
        setup::Setup,
    },
};

/// A stream of other code, which tells on which thread it is destroyed.
struct TheirStream {
    stream: Stream,
    destroyed: mpsc::Sender<ThreadId>,
}

impl Drop for TheirStream {
    fn drop(&mut self) {
        let _nobody_listens = self.destroyed.send(thread::current().id());
    }
}

fn their_stream(context: &Context) -> (TheirStream, mpsc::Receiver<ThreadId>) {
    let (destroyed, destruction) = mpsc::channel();
    let stream = Stream::new(context, StreamOptions::default()).unwrap();
    (TheirStream { stream, destroyed }, destruction)
}

/// Fills memory through a raw stream, as other code does.
fn fill_raw(stream: &impl AsStream, address: u64, byte: u8, bytes: usize) {
    let _bound = stream.context().enter().unwrap();
    // SAFETY: the caller's memory lives until the stream is synchronised.
    let code = unsafe { ffi::cuMemsetD8Async(address, byte, bytes, stream.as_raw()) };
    check("cuMemsetD8Async", code).unwrap();
}

#[test]
fn adopted_stream_orders_our_work_with_theirs() {
    limited(|| {
        let setup = Setup::new();
        let (theirs, destruction) = their_stream(setup.device.context().unwrap());
        let raw = theirs.stream.as_raw();
        // SAFETY: the owner is the stream, and nobody captures it.
        let adopted = unsafe { CudaStream::adopt(&setup.device, raw, theirs) }.unwrap();
        assert_eq!(adopted.as_raw(), raw);
        let (there, back) = (setup.device(100_000), setup.pinned(&vec![0; 100_000]));
        let gate = Gate::before(&setup.device, &[&adopted]);
        fill_raw(&adopted, there.device_address().unwrap(), 7, 100_000);
        let copied = adopted.copy_to_host_async(&there, &back);
        assert!(!copied.is_complete(), "their work is before ours");
        gate.open();
        copied.wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == 7));
        // Buffers keep the fences of their last uses.
        drop((adopted, there, back));
        assert_ne!(destruction.recv().unwrap(), thread::current().id());
        setup.finish();
    });
}

#[test]
fn stream_owner_is_dropped_after_the_last_fence() {
    limited(|| {
        let setup = Setup::new();
        let (theirs, destruction) = their_stream(setup.device.context().unwrap());
        let raw = theirs.stream.as_raw();
        // SAFETY: the owner is the stream, and nobody captures it.
        let adopted = unsafe { CudaStream::adopt(&setup.device, raw, theirs) }.unwrap();
        let there = setup.device(100_000);
        let gate = Gate::before(&setup.device, &[&adopted]);
        drop(adopted.memset_async(&there, Pattern::U8(1)));
        let fence = adopted.fence().unwrap();
        // The memory of a dropped buffer waits with a fence of the stream.
        drop((adopted, there));
        assert!(destruction.try_recv().is_err());
        gate.open();
        fence.wait().unwrap();
        drop(fence);
        setup.memory.drain().unwrap();
        assert_ne!(destruction.recv().unwrap(), thread::current().id());
        assert!(destruction.recv().is_err(), "dropped once");
        setup.finish();
    });
}

#[test]
fn adopted_stream_keeps_its_priority() {
    let setup = Setup::new();
    let context = setup.device.context().unwrap();
    let (_least, greatest) = context.stream_priority_range().unwrap();
    for (priority, expected) in [(0, StreamPriority::Normal), (greatest, StreamPriority::High)] {
        let theirs = Stream::new(context, StreamOptions { priority, blocking: false }).unwrap();
        let raw = theirs.as_raw();
        // SAFETY: the owner is the stream, and nobody captures it.
        let adopted = unsafe { CudaStream::adopt(&setup.device, raw, theirs) }.unwrap();
        assert_eq!(transload_core::Queue::priority(&adopted), expected);
    }
    // SAFETY: the legacy default stream lives as long as the context.
    let default = unsafe { CudaStream::adopt(&setup.device, ptr::null_mut(), ()) }.unwrap();
    default.memset_async(&setup.device(100), Pattern::U8(1)).wait().unwrap();
    drop(default);
    setup.finish();
}

#[test]
fn stream_of_another_device_is_refused_and_its_owner_dropped() {
    let Some(tests) = harness::devices(2) else { return };
    let devices: Vec<_> = tests.iter().map(|test| CudaDevice::new(test.ordinal()).unwrap()).collect();
    let (theirs, destruction) = their_stream(devices[0].context().unwrap());
    // SAFETY: it is refused.
    let refused = unsafe { CudaStream::adopt(&devices[1], theirs.stream.as_raw(), theirs) };
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("another context than cuda:"), "{error}");
    assert_ne!(destruction.recv().unwrap(), thread::current().id());

    // So is the memory of another device.
    let memories: Vec<_> = devices.iter().map(|device| CudaMemoryManager::new(device).unwrap()).collect();
    let there = memories[0].allocate(MemoryKind::Device, 100).unwrap();
    // SAFETY: it is refused.
    let error = unsafe { memories[1].adopt(there.device_address().unwrap(), 100, ()) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains(&devices[0].id().to_string()), "{error}");
    drop(there);
    memories.iter().for_each(|memory| memory.drain().unwrap());
}

#[test]
fn their_event_is_waited_for_and_ours_is_waited_for_by_them() {
    limited(|| {
        let setup = Setup::new();
        let context = setup.device.context().unwrap();
        let (theirs, _destruction) = their_stream(context);
        let ours = CudaStream::new(&setup.device).unwrap();
        let (there, back) = (setup.device(100_000), setup.pinned(&vec![0; 100_000]));
        let address = there.device_address().unwrap();

        // Our stream waits for their event, which is destroyed at once.
        let gate_stream = CudaStream::new(&setup.device).unwrap();
        let gate = Gate::before(&setup.device, &[&gate_stream]);
        FenceEvent::of(&gate_stream.fence().unwrap()).map(|event| theirs_wait(&theirs, &event)).unwrap();
        fill_raw(&theirs.stream, address, 5, 100_000);
        let event = Event::new(context, EventTiming::Disabled).unwrap();
        event.record(&theirs.stream).unwrap();
        // SAFETY: the event is alive.
        unsafe { ours.wait_raw_event(event.as_raw()) }.unwrap();
        drop(event);
        let first = ours.copy_to_host_async(&there, &back);
        assert!(!first.is_complete());
        gate.open();
        first.wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == 5));

        // Their stream waits for an event of our transfer.
        let gate = Gate::before(&setup.device, &[&ours]);
        let filled = ours.memset_async(&there, Pattern::U8(6));
        let fence = pollster::block_on(filled.enqueued()).unwrap().unwrap();
        theirs_wait(&theirs, &FenceEvent::of(&fence).unwrap());
        let (bytes, to) = (100_000, back.host_address().unwrap().as_ptr());
        let bound = context.enter().unwrap();
        // SAFETY: both live to the end of the test; their stream waits for the fill.
        let code = unsafe { ffi::cuMemcpyDtoHAsync_v2(to.cast(), address, bytes, theirs.stream.as_raw()) };
        check("cuMemcpyDtoHAsync_v2", code).unwrap();
        drop(bound);
        assert!(!theirs.stream.is_idle().unwrap());
        gate.open();
        theirs.stream.synchronize().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == 6));

        // The event of complete work is complete.
        filled.wait().unwrap();
        theirs_wait(&theirs, &FenceEvent::of(&fence).unwrap());
        theirs.stream.synchronize().unwrap();
        drop((there, back, ours, gate_stream, fence, theirs));
        setup.finish();
    });
}

#[test]
fn small_copies_before_a_foreign_wait_complete_without_it() {
    limited(|| {
        let setup = Setup::new();
        let [ours, theirs] = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
        let there = setup.device(64);
        let gate = Gate::before(&setup.device, &[&theirs]);
        let fence = theirs.fence().unwrap();
        let filled = ours.memset_async(&there, Pattern::U8(1));
        let event = FenceEvent::of(&fence).unwrap();
        // SAFETY: the event is alive.
        unsafe { ours.wait_raw_event(event.as_raw()) }.unwrap();
        filled.wait().unwrap();
        assert!(!fence.is_complete());
        gate.open();
        drop((there, ours, theirs, fence, event));
        setup.finish();
    });
}

#[test]
fn small_copies_before_memory_of_a_destroyed_stream_complete_without_it() {
    limited(|| {
        let fixture = Fixture::with(MemoryKind::Device, |resource| {
            let builder = StreamOrderedAllocator::builder(resource).segments(1 << 20, 1 << 20);
            builder.limit(1 << 20).build().unwrap()
        });
        let (ours, theirs) = (fixture.stream(), fixture.stream());
        let there = fixture.setup.device(64);
        let gate = Gate::before(fixture.device(), &[&theirs]);
        let block = fixture.allocator.allocate_for_stream(&theirs, 1 << 20).unwrap();
        fixture.allocator.free_on(block, &theirs).unwrap();
        drop(theirs);
        let filled = ours.memset_async(&there, Pattern::U8(1));
        let block = fixture.allocator.allocate_for_stream(&ours, 1 << 20).unwrap();
        filled.wait().unwrap();
        assert!(!ours.is_ready().unwrap(), "it waits for the work of the other stream");
        gate.open();
        fixture.allocator.free_on(block, &ours).unwrap();
        drop((there, ours));
        fixture.finish();
    });
}

#[test]
fn owner_of_a_stream_that_was_captured_is_dropped_after_the_capture() {
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`.
    const RELAXED: u32 = 2;
    limited(|| {
        let fixture = Fixture::new();
        let (theirs, destruction) = their_stream(fixture.device().context().unwrap());
        let raw = theirs.stream.as_raw();
        // SAFETY: the owner is the stream.
        let adopted = unsafe { CudaStream::adopt(fixture.device(), raw, theirs) }.unwrap();
        let other = fixture.stream();
        let [freed, live] = [(); 2].map(|()| fixture.allocator.allocate_for_stream(&adopted, 4096).unwrap());
        fixture.allocator.free_on(freed, &adopted).unwrap();
        let bound = fixture.device().context().unwrap().enter().unwrap();
        // SAFETY: the owner has not destroyed the stream, and nothing is captured.
        check("cuStreamBeginCapture_v2", unsafe { ffi::cuStreamBeginCapture_v2(raw, RELAXED) }).unwrap();
        drop(adopted);
        let mut graph = ptr::null_mut();
        // SAFETY: as above; a stream that is captured is not destroyed.
        check("cuStreamEndCapture", unsafe { ffi::cuStreamEndCapture(raw, &mut graph) }).unwrap();
        // SAFETY: the graph was just made, and nothing else uses it.
        check("cuGraphDestroy", unsafe { ffi::cuGraphDestroy(graph) }).unwrap();
        drop(bound);
        fixture.allocator.drain().unwrap();
        fixture.memory.drain().unwrap();
        destruction.try_recv().expect("nothing needs the stream any more");
        fixture.allocator.record_use(live, &other).unwrap();
        fixture.allocator.free_on(live, &other).unwrap();
        drop(other);
        fixture.finish();
    });
}

fn theirs_wait(theirs: &TheirStream, event: &FenceEvent) {
    // SAFETY: the event is alive.
    unsafe { theirs.stream.wait_raw_event(event.as_raw()) }.unwrap();
}

#[test]
fn fence_of_host_work_has_no_event() {
    let gate = crate::support::cpu_gate::Gate::new();
    let error = FenceEvent::of(&gate.fence()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    gate.open();
}

#[test]
fn used_buffer_is_ordered_around_undeclared_work() {
    limited(|| {
        let setup = Setup::new();
        let [ours, other] = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
        let (there, back) = (setup.device(100_000), setup.pinned(&vec![0; 100_000]));
        let half = there.slice(..50_000).unwrap();
        let gate = Gate::before(&setup.device, &[&other]);
        drop(other.memset_async(&there, Pattern::U8(1)));
        let using = ours.use_buffer(&half, Access::Write).unwrap();
        fill_raw(&ours, half.device_address().unwrap(), 2, 50_000);
        // Meanwhile nothing else may use these bytes.
        assert_eq!(ours.use_buffer(&there, Access::Read).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(other.memset_async(&half, Pattern::U8(3)).wait().unwrap_err().kind(), ErrorKind::Busy);
        using.end().unwrap();
        let seen = other.copy_to_host_async(&there, &back);
        assert!(!seen.is_complete() && !ours.is_ready().unwrap(), "it waits for the earlier fill");
        gate.open();
        seen.wait().unwrap();
        let bytes = back.read().unwrap();
        assert!(
            bytes[..50_000].iter().all(|byte| *byte == 2) && bytes[50_000..].iter().all(|byte| *byte == 1)
        );
        drop(bytes);
        // A use for reading leaves others to read, and dropping it ends it.
        let reading = ours.use_buffer(&there, Access::Read).unwrap();
        other.copy_to_host_async(&there, &back).wait().unwrap();
        drop(reading);
        other.memset_async(&there, Pattern::U8(4)).wait().unwrap();
        drop((half, there, back, ours, other));
        setup.finish();
    });
}

#[test]
fn later_work_waits_for_undeclared_work_in_flight() {
    limited(|| {
        let setup = Setup::new();
        let [ours, other] = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
        let (there, back) = (setup.device(100_000), setup.pinned(&vec![0; 100_000]));
        for round in 0..20 {
            let using = ours.use_buffer(&there, Access::Write).unwrap();
            let gate = Gate::before(&setup.device, &[&ours]);
            fill_raw(&ours, there.device_address().unwrap(), round, 100_000);
            drop(using);
            let seen = other.copy_to_host_async(&there, &back);
            assert!(!seen.is_complete());
            gate.open();
            seen.wait().unwrap();
            assert!(back.read().unwrap().iter().all(|byte| *byte == round));
        }
        drop((there, back, ours, other));
        setup.finish();
    });
}

#[test]
fn use_of_a_captured_stream_is_refused_or_ends_after_the_capture() {
    limited(|| {
        let setup = Setup::new();
        let stream = CudaStream::new(&setup.device).unwrap();
        let _exposed = stream.as_raw();
        let there = setup.device(1000);
        let using = stream.use_buffer(&there, Access::Write).unwrap();
        // SAFETY: nothing else is enqueued on the stream meanwhile.
        let capture = unsafe { Capture::begin(&stream, CaptureMode::Relaxed) }.unwrap();
        assert_eq!(stream.use_buffer(&setup.device(10), Access::Read).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(using.end().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(there.lend(Access::Read).unwrap_err().kind(), ErrorKind::Busy);
        drop(capture.end().unwrap());
        CudaStream::drain_loan_ends(stream.device()).unwrap();
        drop(there.lend(Access::Write).unwrap());
        drop((there, stream));
        setup.finish();
    });
}
