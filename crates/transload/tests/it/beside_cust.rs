//! cust's buffers, streams and events beside a runtime's, both ways: content, order, equal addresses, and no copy.

use std::{
    ptr,
    sync::{Arc, mpsc},
    thread::{self, ThreadId},
};

use transload::{
    TransferMethod,
    cuda::{Access, CudaStream, FenceEvent},
};
use transload_cuda_sys::{
    cust::{
        context::{Context, CurrentContext},
        event::{Event, EventFlags, EventStatus},
        memory::{AsyncCopyDestination, CopyDestination, DeviceBuffer, DevicePointer, DeviceSlice},
        stream::{Stream, StreamFlags},
        sys,
    },
    trace,
};

use crate::{
    adopt::{COUNT, Setup},
    gate::{Gate, limited},
};

/// A value of cust's as an owner, which tells on which thread it is dropped.
struct Owner<T> {
    _value: T,
    dropped: mpsc::Sender<ThreadId>,
}

impl<T> Owner<T> {
    fn of(value: T) -> (Self, mpsc::Receiver<ThreadId>) {
        let (dropped, drops) = mpsc::channel();
        (Self { _value: value, dropped }, drops)
    }
}

impl<T> Drop for Owner<T> {
    fn drop(&mut self) {
        let _nobody_listens = self.dropped.send(thread::current().id());
    }
}

fn assert_dropped_once_elsewhere(drops: &mpsc::Receiver<ThreadId>) {
    assert!(drops.try_recv().is_ok_and(|on| on != thread::current().id()), "not dropped, or here");
    assert_eq!(drops.try_recv(), Err(mpsc::TryRecvError::Disconnected), "dropped twice, or kept");
}

/// A program that uses cust, on the device of a runtime.
struct Cust {
    setup: Setup,
    stream: Arc<Stream>,
    _context: Context,
}

impl Cust {
    fn new() -> Self {
        let setup = Setup::new();
        let device = setup.gpu.device().driver().to_cust().unwrap();
        let context = Context::new(device).unwrap();
        let stream = Arc::new(Stream::new(StreamFlags::NON_BLOCKING, None).unwrap());
        Self { setup, stream, _context: context }
    }

    fn adopt_stream(&self) -> (CudaStream, mpsc::Receiver<ThreadId>) {
        let (owner, drops) = Owner::of(Arc::clone(&self.stream));
        // SAFETY: the owner keeps the stream, and nothing is captured on it.
        let adopted = unsafe { self.setup.gpu.adopt_stream(self.stream.as_inner() as usize, owner) };
        (adopted.unwrap(), drops)
    }

    fn finish(self) {
        let Self { setup, stream, _context } = self;
        drop((stream, _context));
        setup.finish();
    }
}

/// Memory as a slice of cust's, which does not own it.
fn slice_at(address: u64) -> DeviceSlice<u32> {
    // SAFETY: the tests pass the address of memory of `COUNT` numbers, which outlives the slice.
    unsafe { DeviceSlice::from_raw_parts_mut(DevicePointer::from_raw(address), COUNT) }
}

fn numbers(first: u32) -> Vec<u32> {
    (first..).take(COUNT).collect()
}

#[test]
fn a_buffer_of_custs_is_an_array_and_copied_both_ways() {
    let cust = Cust::new();
    let (rt, gpu) = (&cust.setup.rt, &cust.setup.gpu);
    let theirs = DeviceBuffer::from_slice(&numbers(7)).unwrap();
    // cust returns before the last bytes of pageable memory are there.
    CurrentContext::synchronize().unwrap();
    let address = theirs.as_device_ptr().as_raw();
    let (owner, drops) = Owner::of(theirs);
    let trace = trace::start();
    // SAFETY: the buffer has `COUNT` numbers there, is at rest, and is used by nobody else.
    let array = unsafe { gpu.adopt::<u32>(address, COUNT, owner) }.unwrap();
    assert_eq!(array.raw().device_address(), Some(address));
    let calls = trace.calls_of_this_thread();
    assert!(!calls.iter().any(|call| call.name.contains("cpy") || call.name.contains("Alloc")), "{calls:?}");
    drop(trace);

    assert!(*rt.download(&array).wait().unwrap() == *numbers(7));
    let (host, ours) = (rt.host(numbers(1000)).unwrap(), gpu.zeros::<u32>(COUNT).unwrap());
    rt.copy(&host, &array).wait().unwrap();
    assert_eq!(rt.copy(&array, &ours).wait().unwrap().method, TransferMethod::DirectCopy);
    let mut seen = vec![0; COUNT];
    slice_at(address).copy_to(&mut seen).unwrap();
    assert!(seen == numbers(1000));

    assert!(drops.try_recv().is_err(), "the array is alive");
    drop((array, ours, host));
    rt.drain().unwrap();
    assert_dropped_once_elsewhere(&drops);
    cust.finish();
}

#[test]
fn a_stream_of_custs_orders_its_work_with_ours() {
    let cust = Cust::new();
    let (rt, gpu) = (&cust.setup.rt, &cust.setup.gpu);
    let (adopted, drops) = cust.adopt_stream();
    let ours = gpu.zeros::<u32>(COUNT).unwrap();
    // SAFETY: the buffer is written before it is read, in the stream's order.
    let mut theirs = unsafe { DeviceBuffer::<u32>::uninitialized(COUNT) }.unwrap();
    let address = theirs.as_device_ptr().as_raw();
    for round in 1..20 {
        // SAFETY: in the stream's order.
        unsafe { theirs.set_32_async(round, &cust.stream) }.unwrap();
        // SAFETY: this loop drops the array before the buffer; all work on both is in the stream's order.
        let array =
            unsafe { gpu.adopt_after::<u32>(address, COUNT, (), &[adopted.fence().unwrap()]) }.unwrap();
        let copied = rt.copy(&array, &ours).on(&adopted).submit();
        // SAFETY: in the stream's order.
        unsafe { theirs.set_32_async(0xDEAD, &cust.stream) }.unwrap();
        copied.wait().unwrap();
        assert!(rt.download(&ours).wait().unwrap().iter().all(|number| *number == round));
        rt.copy(&ours, &array).on(&adopted).wait().unwrap();
        let mut seen = vec![0; COUNT];
        theirs.copy_to(&mut seen).unwrap();
        assert!(seen.iter().all(|number| *number == round));
    }
    drop((adopted, ours));
    rt.drain().unwrap();
    assert_dropped_once_elsewhere(&drops);
    drop(theirs);
    cust.finish();
}

#[test]
fn an_array_is_a_slice_of_custs_that_owns_nothing() {
    let cust = Cust::new();
    let (rt, gpu) = (&cust.setup.rt, &cust.setup.gpu);
    let (adopted, _drops) = cust.adopt_stream();
    let array = gpu.zeros::<u32>(COUNT).unwrap();
    let mut slice = slice_at(array.raw().device_address().unwrap());
    let mut theirs = DeviceBuffer::<u32>::zeroed(COUNT).unwrap();
    for round in 1..20 {
        let using = array.used_on(&adopted, Access::Write).unwrap();
        // SAFETY: the use puts it in order with our work, and the buffer outlives it.
        unsafe {
            slice.set_32_async(round, &cust.stream).unwrap();
            slice.async_copy_to(&mut *theirs, &cust.stream).unwrap();
        }
        using.end().unwrap();
        // On a stream of ours.
        assert!(rt.download(&array).wait().unwrap().iter().all(|number| *number == round));
    }
    let mut seen = vec![0; COUNT];
    theirs.copy_to(&mut seen).unwrap();
    assert!(seen.iter().all(|number| *number == 19));
    drop((slice, array, adopted, theirs));
    rt.drain().unwrap();
    cust.finish();
}

#[test]
fn events_of_custs_and_ours_are_waited_for() {
    limited(|| {
        let cust = Cust::new();
        let (rt, gpu) = (&cust.setup.rt, &cust.setup.gpu);
        let (adopted, _drops) = cust.adopt_stream();
        let (there, ours) = (gpu.zeros::<u32>(COUNT).unwrap(), gpu.zeros::<u32>(COUNT).unwrap());
        let mut theirs = DeviceBuffer::<u32>::zeroed(COUNT).unwrap();
        // Makes what the first copy needs: with the gate closed the driver may not allocate.
        rt.copy(&there, &ours).wait().unwrap();
        CurrentContext::synchronize().unwrap();
        let mut slice = slice_at(there.raw().device_address().unwrap());
        // cust keeps the handles of its `Event`s to itself: this one is of its declarations.
        let mut event = ptr::null_mut();
        // SAFETY: the context is current and the out pointer valid.
        assert_eq!(unsafe { sys::cuEventCreate(&mut event, 2) } as u32, 0);

        let gate = Gate::before(gpu.device(), &[&adopted]);
        // SAFETY: nothing of ours uses the array before the event, which the copy waits for.
        unsafe { slice.set_32_async(5, &cust.stream) }.unwrap();
        // SAFETY: both handles are alive.
        assert_eq!(unsafe { sys::cuEventRecord(event, cust.stream.as_inner()) } as u32, 0);
        // SAFETY: the event is alive.
        let theirs_recorded = unsafe { gpu.fence_of_event(event as usize) }.unwrap();
        let copied = rt.copy(&there, &ours).after(&theirs_recorded).submit();
        // Ours, on a stream of ours: theirs waits for it.
        let fence = pollster::block_on(copied.enqueued()).unwrap().unwrap();
        let done = FenceEvent::of(&fence).unwrap();
        // SAFETY: both handles are alive; an event may be destroyed while a stream waits for it.
        assert_eq!(unsafe { sys::cuStreamWaitEvent(cust.stream.as_inner(), done.as_raw(), 0) } as u32, 0);
        // SAFETY: after our copy by the wait, and nothing of ours writes `ours` then.
        unsafe { slice_at(ours.raw().device_address().unwrap()).async_copy_to(&mut *theirs, &cust.stream) }
            .unwrap();
        let end = Event::new(EventFlags::DISABLE_TIMING).unwrap();
        end.record(&cust.stream).unwrap();
        assert!(!copied.is_complete(), "their event is before our copy");
        assert_eq!(end.query().unwrap(), EventStatus::NotReady);
        gate.open();
        end.synchronize().unwrap();
        assert!(copied.is_complete());
        let mut seen = vec![0; COUNT];
        theirs.copy_to(&mut seen).unwrap();
        assert!(seen.iter().all(|number| *number == 5));

        // SAFETY: created above, and nothing uses it any more.
        assert_eq!(unsafe { sys::cuEventDestroy_v2(event) } as u32, 0);
        drop((theirs_recorded, copied, fence, done, end));
        drop((slice, theirs, there, ours, adopted));
        rt.drain().unwrap();
        cust.finish();
    });
}
