//! Stamps of streams, and sampled operations.

use std::{sync::Arc, thread};

use parking_lot::Mutex;
use transload_core::{
    ErrorKind, Fence, MemoryKind, Operation, OperationKind, OperationRecord, OperationSampling,
    OperationSink, Queue, RawBuffer, Stamp, Timing, submit,
};
use transload_cuda_sim::harness;
use transload_cuda_sys::{CaptureMode, trace};
use transload_memory::{CudaDevice, CudaMemoryManager};
use transload_streams::CudaStream;

use super::capture::{begin, beside_a_global_capture};
use crate::support::setup::{Setup, noise};

/// Keeps what it is given.
#[derive(Default)]
pub(crate) struct Recorder(pub(crate) Mutex<Vec<OperationRecord>>);

impl OperationSink for Recorder {
    fn operation(&self, record: OperationRecord) {
        self.0.lock().push(record);
    }
}

impl Recorder {
    pub(crate) fn attached(
        setup: &Setup,
        sampling: OperationSampling,
    ) -> (Arc<Self>, Arc<dyn OperationSink>) {
        let recorder = Arc::new(Self::default());
        let sink: Arc<dyn OperationSink> = Arc::clone(&recorder) as _;
        setup.device.profile().sink().attach(Arc::clone(&sink), sampling).unwrap();
        (recorder, sink)
    }

    pub(crate) fn take(&self) -> Vec<OperationRecord> {
        std::mem::take(&mut *self.0.lock())
    }
}

pub(crate) fn copy(stream: &CudaStream, src: &RawBuffer, dst: &RawBuffer) -> transload_core::Result<Fence> {
    submit(stream, &Operation::Copy { src, dst }, Timing::Off)
}

pub(crate) fn known(stamp: &Stamp) -> i64 {
    stamp.time().unwrap().expect("the stream has reached it")
}

/// Names of the calling thread's driver calls.
fn calls(of: impl FnOnce()) -> Vec<&'static str> {
    let trace = trace::start();
    of();
    trace.calls_of_this_thread().iter().map(|call| call.name).collect()
}

#[test]
fn captured_stream_refuses_stamps_and_stays_captured() {
    let setup = Setup::new();
    let (captured, other) =
        (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
    let (host, there) = (setup.pinned(&noise(4096, 1)), setup.device(4096));
    let earlier = captured.stamp().unwrap();
    captured.synchronize().unwrap();
    let (recorder, sink) = Recorder::attached(&setup, OperationSampling::ALL);
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let capture = begin(&captured, mode).unwrap();
        assert_eq!(captured.stamp().unwrap_err().kind(), ErrorKind::Busy, "{mode:?}");
        assert_eq!(copy(&captured, &host, &there).unwrap_err().kind(), ErrorKind::Busy, "{mode:?}");
        let stamp = other.stamp().unwrap();
        copy(&other, &host, &there).unwrap().wait().unwrap();
        assert!(known(&earlier) <= known(&stamp));
        stamp.clock().anchor().unwrap();
        assert!(capture.end().is_ok(), "{mode:?}: the capture is valid to its end");
        assert_eq!(recorder.take().len(), 1, "{mode:?}: the refused copy is not passed");
    }
    copy(&captured, &host, &there).unwrap().wait().unwrap();
    let records = recorder.take();
    let [record] = &records[..] else { panic!("one record") };
    assert!(known(&earlier) <= known(&record.begin) && known(&record.begin) <= known(&record.end));
    drop(records);
    setup.device.profile().sink().detach(&sink);
    drop((host, there, earlier, captured, other));
    setup.finish();
}

#[test]
fn clock_made_during_another_threads_capture_leaves_it_valid() {
    let setup = Setup::new();
    let (captured, stream) =
        (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
    let (host, there) = (setup.pinned(&noise(4096, 1)), setup.device(4096));
    let (recorder, sink) = Recorder::attached(&setup, OperationSampling::ALL);
    beside_a_global_capture(&captured, || {
        copy(&stream, &host, &there)?.wait()?;
        let stamp = stream.stamp()?;
        stamp.clock().anchor()?;
        stream.synchronize()?;
        stamp.time().map(drop)
    });
    assert_eq!(recorder.take().len(), 1);
    setup.device.profile().sink().detach(&sink);
    drop((host, there, captured, stream));
    setup.finish();
}

#[test]
fn default_stream_of_another_thread_refuses_stamps() {
    let setup = Setup::new();
    let stream = CudaStream::per_thread_default(&setup.device).unwrap();
    let ours = stream.stamp().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let kind = stream.stamp().map(drop).map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::InvalidArgument));
            // The instant itself can be read anywhere.
            ours.time().unwrap();
        });
    });
    stream.synchronize().unwrap();
    known(&ours);
    drop((ours, stream));
    setup.finish();
}

#[test]
fn stamps_outlive_their_stream() {
    let test = harness::device();
    let _end = test.end_check();
    let device = CudaDevice::new(test.ordinal()).unwrap();
    let memory = CudaMemoryManager::new(&device).unwrap();
    let (host, there) = (
        memory.allocate(MemoryKind::Pinned, 8 << 20).unwrap(),
        memory.allocate(MemoryKind::Device, 8 << 20).unwrap(),
    );
    let stream = CudaStream::new(&device).unwrap();
    let before = stream.stamp().unwrap();
    let fence = copy(&stream, &host, &there).unwrap();
    let after = stream.stamp().unwrap();
    drop(stream);
    fence.wait().unwrap();
    // The stamp is enqueued after the work of the fence.
    while after.time().unwrap().is_none() {
        thread::yield_now();
    }
    drop((fence, host, there));
    memory.drain().unwrap();
    drop((memory, device));
    assert!(known(&before) < known(&after), "stamps outlive the device's last handle");
}

#[test]
fn events_of_dropped_stamps_are_used_again() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&noise(1 << 20, 3)), setup.device(1 << 20));
    let round = || {
        copy(&stream, &host, &there).unwrap();
        // Dropped while the copy is in flight.
        let stamps: Vec<_> = (0..20).map(|_| stream.stamp().unwrap()).collect();
        drop(stamps);
    };
    round();
    let calls = calls(|| (0..20).for_each(|_| round()));
    let created = calls.iter().filter(|name| **name == "cuEventCreate").count();
    // A copy's own fence may need one.
    assert!(created <= 20, "{created} events for 400 stamps");
    let (first, last) = (stream.stamp().unwrap(), stream.stamp().unwrap());
    stream.synchronize().unwrap();
    assert!(known(&first) <= known(&last));
    drop((first, last, host, there, stream));
    setup.finish();
}

#[test]
fn begin_comes_after_what_the_operation_waits_for() {
    let setup = Setup::new();
    let (slow, quick) = (CudaStream::new(&setup.device).unwrap(), CudaStream::new(&setup.device).unwrap());
    let (host, there, back) =
        (setup.pinned(&noise(32 << 20, 4)), setup.device(32 << 20), setup.pinned(&[0; 4096]));
    let (recorder, sink) = Recorder::attached(&setup, OperationSampling::ALL);
    copy(&slow, &host, &there).unwrap();
    copy(&quick, &there.slice(..4096).unwrap(), &back).unwrap().wait().unwrap();
    let records = recorder.take();
    let [first, wait, second] = &records[..] else { panic!("{records:?}") };
    let [end, begin] = [&first.end, &second.begin].map(known);
    assert!(end <= begin, "the first ends at {end}, the second begins at {begin}");
    assert_eq!((wait.info.kind, wait.queue), (OperationKind::Wait, second.queue));
    assert_eq!(wait.waits_for, first.point.map(|point| (first.queue, point)));
    assert!(wait.waits_for.is_some() && first.waits_for.is_none() && second.waits_for.is_none());
    let waited = [&wait.begin, &wait.end].map(known);
    assert!(waited[0] < end && end <= waited[1] && waited[1] <= begin, "waited {waited:?}");
    drop(records);
    // What is complete is not waited for.
    slow.synchronize().unwrap();
    copy(&quick, &there.slice(..4096).unwrap(), &back).unwrap().wait().unwrap();
    assert_eq!(recorder.take().iter().map(|it| it.info.kind).collect::<Vec<_>>(), [OperationKind::Copy]);
    setup.device.profile().sink().detach(&sink);
    drop((host, there, back, slow, quick));
    setup.finish();
}

#[test]
fn operations_that_are_not_timed_make_no_more_calls() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&noise(4096, 5)), setup.device(4096));
    let copies = |count: usize| {
        stream.synchronize().unwrap();
        calls(|| (0..count).for_each(|_| drop(copy(&stream, &host, &there).unwrap())))
    };
    copies(64);
    let plain = copies(64);
    let one = copies(1);
    let records = |calls: &[&str]| calls.iter().filter(|name| **name == "cuEventRecord").count();
    // Entering and leaving a context reaches no device.
    let others = |mut calls: Vec<&'static str>| {
        calls.retain(|name| *name != "cuEventRecord" && !name.starts_with("cuCtx"));
        calls
    };
    for turn in 0..2 {
        let (recorder, sink) =
            Recorder::attached(&setup, OperationSampling { all_from_bytes: 1 << 20, one_in: 64 });
        // The first one is timed, and makes the clock.
        copies(1);
        assert_eq!(recorder.take().len(), 1);
        let mut untimed = 0;
        for _ in 0..30 {
            let calls = copies(1);
            match recorder.take().len() {
                0 => {
                    assert_eq!(calls, one, "turn {turn}");
                    untimed += 1;
                }
                _ => {
                    assert_eq!(records(&calls), records(&one) + 2, "turn {turn}");
                    assert_eq!(others(calls), others(one.clone()), "turn {turn}");
                }
            }
        }
        assert!(untimed > 10, "turn {turn}: {untimed}");
        setup.device.profile().sink().detach(&sink);
        assert_eq!(copies(64), plain, "turn {turn}, after the sink was detached");
    }
    let (recorder, sink) = Recorder::attached(&setup, OperationSampling::ALL);
    // Creates the events.
    copies(64);
    recorder.take();
    let timed = copies(64);
    assert_eq!(records(&timed), records(&plain) + 2 * 64);
    assert_eq!(others(timed), others(plain.clone()), "a timed copy records two events and does nothing else");
    drop(recorder.take());
    setup.device.profile().sink().detach(&sink);
    assert_eq!(copies(64), plain);
    drop((host, there, stream));
    setup.finish();
}

/// Panics at each operation.
struct Panicking;

impl OperationSink for Panicking {
    fn operation(&self, _: OperationRecord) {
        panic!("a sink's panic");
    }
}

#[test]
fn panic_of_a_sink_does_not_end_the_operations_claims() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let bytes = noise(1 << 20, 9);
    let (host, there, back) = (setup.pinned(&bytes), setup.device(1 << 20), setup.pinned(&[0; 1 << 20]));
    let sink: Arc<dyn OperationSink> = Arc::new(Panicking);
    setup.device.profile().sink().attach(Arc::clone(&sink), OperationSampling::ALL).unwrap();
    let first = copy(&stream, &host, &there).unwrap();
    // Later uses wait for it.
    let second = copy(&CudaStream::new(&setup.device).unwrap(), &there, &back).unwrap();
    second.wait().unwrap();
    assert!(first.is_complete());
    assert!(*back.read().unwrap() == bytes[..], "the bytes have arrived");
    setup.device.profile().sink().detach(&sink);
    drop((first, second, host, there, back, stream));
    setup.finish();
}

#[test]
fn times_of_an_operation_are_known_once_its_fence_is_complete() {
    let setup = Setup::new();
    let stream = CudaStream::new(&setup.device).unwrap();
    let (host, there) = (setup.pinned(&noise(100_000, 8)), setup.device(100_000));
    let (recorder, sink) = Recorder::attached(&setup, OperationSampling::ALL);
    for round in 0..200 {
        let bytes = [64, 100_000][round % 2];
        let (src, dst) = (host.slice(..bytes).unwrap(), there.slice(..bytes).unwrap());
        copy(&stream, &src, &dst).unwrap().wait().unwrap();
        for record in recorder.take() {
            assert!(record.end.time().unwrap().is_some(), "round {round}: {:?}", record.info);
        }
    }
    setup.device.profile().sink().detach(&sink);
    drop((host, there, stream));
    setup.finish();
}
