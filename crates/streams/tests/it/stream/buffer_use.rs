//! Uses of buffers, and loans, that end on other threads, after captures, and in several threads at once.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use transload_core::{Access, DeviceId, ErrorKind, Fence, Loan, MemoryKind, Place, RawBuffer, Storage};
use transload_cuda_sys::{AsStream, Capture, CaptureMode, check, ffi};
use transload_streams::CudaStream;

use crate::support::{gate::limited, setup::Setup};

/// Ends loans during a capture of their stream, which is then over.
fn end_in_capture(stream: &CudaStream, loans: Vec<Loan>) {
    let _exposed = stream.as_raw();
    // SAFETY: nothing else is enqueued on the stream meanwhile.
    let capture = unsafe { Capture::begin(stream, CaptureMode::Relaxed) }.unwrap();
    for loan in loans {
        assert_eq!(stream.end_loan(loan).unwrap_err().kind(), ErrorKind::Busy);
    }
    let left = CudaStream::drain_loan_ends(stream.device()).unwrap_err();
    assert_eq!(left.kind(), ErrorKind::Busy, "{left}");
    drop(capture.end().unwrap());
}

#[test]
fn use_on_a_per_thread_stream_is_refused() {
    let setup = Setup::new();
    let stream = CudaStream::per_thread_default(&setup.device).unwrap();
    let there = setup.device(1000);
    let error = stream.use_buffer(&there, Access::Write).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("per-thread default stream"), "{error}");
    drop(there.lend(Access::Write).unwrap());
    drop((there, stream));
    setup.finish();
}

#[test]
fn loan_of_a_per_thread_stream_ends_on_another_thread_after_its_work() {
    limited(|| {
        let setup = Setup::new();
        let stream = CudaStream::per_thread_default(&setup.device).unwrap();
        let (there, back) = (setup.device(100_000), setup.pinned(&vec![0; 100_000]));
        let loan = there.lend(Access::Write).unwrap();
        let bound = stream.context().enter().unwrap();
        // SAFETY: the memory lives to the end of the test.
        let filled =
            unsafe { ffi::cuMemsetD8Async(there.device_address().unwrap(), 9, 100_000, stream.as_raw()) };
        check("cuMemsetD8Async", filled).unwrap();
        drop(bound);
        thread::scope(|scope| scope.spawn(|| stream.end_loan(loan)).join().unwrap()).unwrap();
        let other = CudaStream::new(&setup.device).unwrap();
        other.copy_to_host_async(&there, &back).wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == 9));
        drop((there, back, stream, other));
        setup.finish();
    });
}

#[test]
fn end_of_a_loan_ends_older_ones_too() {
    limited(|| {
        let setup = Setup::new();
        let [captured, other] = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
        let (older, newer) = (setup.device(1000), setup.device(1000));
        end_in_capture(&captured, vec![older.lend(Access::Write).unwrap()]);
        // Another test may have it in hand at this moment.
        while older.lend(Access::Read).is_err() {
            other.end_loan(newer.lend(Access::Write).unwrap()).unwrap();
        }
        drop((older, newer, captured, other));
        setup.finish();
    });
}

/// No bytes that anybody can reach; its drop runs a function.
struct OnDrop(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl OnDrop {
    fn buffer(act: impl FnOnce() + Send + 'static) -> RawBuffer {
        RawBuffer::new(Box::new(Self(Mutex::new(Some(Box::new(act))))), &Arc::default())
    }
}

// SAFETY: it has no address.
unsafe impl Storage for OnDrop {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, MemoryKind::Pageable)
    }

    fn len(&self) -> usize {
        16
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        None
    }

    fn adopt_fences(&mut self, _: &[Fence]) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(act) = self.0.get_mut().unwrap().take() {
            act();
        }
    }
}

#[test]
fn drain_by_the_end_of_a_loan_sees_the_others() {
    limited(|| {
        let setup = Setup::new();
        let [over, open] = [(); 2].map(|()| CudaStream::new(&setup.device).unwrap());
        let there = setup.device(1000);
        let (sender, outcome) = mpsc::channel();
        let device = over.device();
        let first = OnDrop::buffer(move || sender.send(CudaStream::drain_loan_ends(device)).unwrap());
        let (loan, other) = (first.lend(Access::Write).unwrap(), there.lend(Access::Write).unwrap());
        drop(first);
        let _exposed = [&over, &open].map(|stream| stream.as_raw());
        // SAFETY: nothing else is enqueued on the streams meanwhile.
        let [ends, stays] =
            [&over, &open].map(|stream| unsafe { Capture::begin(stream, CaptureMode::Relaxed) }.unwrap());
        over.end_loan(loan).unwrap_err();
        open.end_loan(other).unwrap_err();
        drop(ends.end().unwrap());
        CudaStream::retry_loan_ends();
        assert_eq!(outcome.recv().unwrap().unwrap_err().kind(), ErrorKind::Busy, "one is captured still");
        drop(stays.end().unwrap());
        CudaStream::drain_loan_ends(device).unwrap();
        drop((there, over, open));
        setup.finish();
    });
}

#[test]
fn drain_waits_for_loans_that_another_thread_ends() {
    limited(|| {
        let setup = Setup::new();
        let stream = CudaStream::new(&setup.device).unwrap();
        let ((entered, is_entered), (go, gone)) = (mpsc::channel(), mpsc::channel());
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let first = OnDrop::buffer(move || {
            entered.send(()).unwrap();
            gone.recv().unwrap();
            over.store(true, Ordering::Release);
        });
        let loan = first.lend(Access::Write).unwrap();
        // Before the loan can end, on whichever thread.
        drop(first);
        end_in_capture(&stream, [loan].into());
        let (begun, is_begun) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(CudaStream::retry_loan_ends);
            is_entered.recv().unwrap();
            let draining = scope.spawn(|| {
                begun.send(()).unwrap();
                CudaStream::drain_loan_ends(stream.device()).map(|()| is_over.load(Ordering::Acquire))
            });
            is_begun.recv().unwrap();
            // Time for a drain that does not wait to show itself.
            (0..10_000).take_while(|_| !draining.is_finished()).for_each(|_| thread::yield_now());
            go.send(()).unwrap();
            assert!(draining.join().unwrap().unwrap(), "a loan that another thread ended was still open");
        });
        drop(stream);
        setup.finish();
    });
}
