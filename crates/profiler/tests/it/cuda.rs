//! CUDA's streams. On the software driver their clock runs with the host's, at an offset and a rate of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    Backend, DeviceId, MemoryKind, Operation, OperationInfo, OperationKind, OperationRecord,
    OperationSampling, OperationSink, Pattern, Queue as _, StreamPriority, Timing, TransferId,
    TransferMethod, TransferScope, Wanted, WorkloadType, submit,
};
use transload_cuda_sim::harness::{self, EndCheck};
use transload_profiler::{
    Direction, ProfilerOptions, StreamProfiler, StreamReport, TraceFormat, TraceOptions,
};
use transload_streams::{CudaModule, CudaStream, LaunchConfig};
use transload_transfer::CrossBackendTransferManager;

use crate::{Written, timing_all};

/// Offset of the software driver's clock from the host's.
pub(crate) const OFFSET: Duration = Duration::from_secs(5);
/// What it gains on the host's, in millionths.
pub(crate) const DRIFT: i32 = 200;

pub(crate) fn setup() -> (EndCheck, Arc<CudaBackend>, StreamProfiler) {
    setup_with(timing_all())
}

pub(crate) fn setup_with(profiler: StreamProfiler) -> (EndCheck, Arc<CudaBackend>, StreamProfiler) {
    // A real device has a clock of its own.
    let test = harness::device_like(|device| device.paced(OFFSET, DRIFT)).end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = pollster::block_on(CudaBackend::initialize(config)).unwrap();
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    profiler.enable().unwrap();
    (test, backend, profiler)
}

#[test]
fn streams_that_are_gone_are_joined_and_none_of_their_operations_is_lost() {
    joins_streams(false);
}

#[test]
fn streams_beyond_many_are_counted_together() {
    joins_streams(true);
}

/// Fills on one stream after another, which may be kept.
fn joins_streams(are_kept: bool) {
    const STREAMS: u64 = 600;
    let mut kept = Vec::new();
    let (test, backend, profiler) = setup();
    let device = backend.device(test.ordinal()).unwrap();
    let there = backend.allocate(DeviceId::Cuda(test.ordinal()), MemoryKind::Device, 1000).unwrap();
    for number in 0..STREAMS {
        let stream = CudaStream::new(device).unwrap();
        let fill = Operation::Fill { dst: &there, pattern: Pattern::U8(number as u8) };
        submit(&stream, &fill, Timing::Off).unwrap().wait().unwrap();
        if number == STREAMS - 1 {
            let others = profiler.get_stream_report(&stream).unwrap();
            let expected = if are_kept { ("others", STREAMS - 256) } else { (&*others.stream, 1) };
            assert_eq!((&*others.stream, others.operations()), expected);
        }
        kept.extend(Some(stream).filter(|_| are_kept));
        if number % 50 == 0 {
            drop(profiler.get_comprehensive_report());
        }
    }
    let report = profiler.get_comprehensive_report();
    let sum = report.streams.iter().map(StreamReport::operations).sum::<u64>();
    let timed = report.streams.iter().flat_map(|stream| &stream.kinds).map(|kind| kind.running.count);
    assert_eq!((sum, timed.sum::<u64>(), report.lost), (STREAMS, STREAMS, 0));
    assert!(report.streams.len() <= 257 && report.directions[0].all_timed, "{}", report.streams.len());
    assert_eq!(report.streams.last().unwrap().stream, "others");
    drop((profiler, there, kept, backend));
    test.assert_no_live_objects();
}

#[test]
fn directions_of_a_device_are_apart() {
    let (test, backend, profiler) = setup();
    let device = DeviceId::Cuda(test.ordinal());
    let there = backend.allocate(device, MemoryKind::Device, 1 << 20).unwrap();
    let here = backend.allocate(device, MemoryKind::Pinned, 1 << 20).unwrap();
    let queue = backend.lease_queue(device, StreamPriority::High, WorkloadType::Memory).unwrap();
    here.write().unwrap().fill(3);
    let large = backend.allocate(device, MemoryKind::Device, 64 << 20).unwrap();
    let from = backend.allocate(device, MemoryKind::Pinned, 64 << 20).unwrap();
    // While it runs, the others are enqueued.
    submit(&*queue, &Operation::Copy { src: &from, dst: &large }, Timing::Off).unwrap();
    submit(&*queue, &Operation::Copy { src: &here, dst: &there }, Timing::Off).unwrap();
    submit(&*queue, &Operation::Copy { src: &there, dst: &here }, Timing::Off).unwrap();
    let fill = Operation::Fill { dst: &there, pattern: Pattern::U8(0) };
    submit(&*queue, &fill, Timing::Off).unwrap().wait().unwrap();
    let all = profiler.get_comprehensive_report();
    let directions: Vec<_> = all.directions.iter().map(|it| (it.direction, it.timed_bytes)).collect();
    let bytes = 1 << 20;
    assert_eq!(
        directions,
        [(Direction::ToDevice, 65 * bytes), (Direction::FromDevice, bytes), (Direction::Compute, bytes)]
    );
    let [stream] = &all.streams[..] else { panic!("{all}") };
    assert_eq!((stream.priority, stream.simulated), (StreamPriority::High, test.is_simulated()));
    let kinds: Vec<_> = stream.kinds.iter().map(|kind| (kind.kind, kind.running.count)).collect();
    assert_eq!(kinds, [(OperationKind::Copy, 3), (OperationKind::Fill, 1)]);
    assert_eq!((stream.unresolved, all.lost, all.outstanding), (0, 0, 0));
    if test.is_simulated() {
        // 6 µs, 1 MiB at 55 GB/s, and the time of an event; two digits are kept.
        let short = stream.kinds[0].running.percentiles.unwrap().p10_ns;
        // Longer only if this thread was held up between two calls.
        assert!(short >= 24_800, "{short}: {stream}");
    }
    assert!(all.clocks.iter().all(|clock| clock.follows_host), "{all}");
}

/// Operations lie between their enqueueing and the moment at which their end was seen, by the host's clock, on each device: the software driver's two have clocks of
/// their own.
#[test]
fn device_rows_lie_on_the_clock_of_the_host() {
    let first = harness::device_like(|device| device.paced(OFFSET, DRIFT)).end_check();
    let other = || harness::device_like(|device| device.paced(3 * OFFSET, -DRIFT)).end_check();
    let second = (!harness::is_real()).then(other);
    let ordinals: Vec<u32> =
        [first.ordinal()].into_iter().chain(second.as_ref().map(|it| it.ordinal())).collect();
    let config = CudaBackendConfig::default().with_devices(ordinals.iter().copied());
    let backend = pollster::block_on(CudaBackend::initialize(config)).unwrap();
    let profiler = timing_all();
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    profiler.enable().unwrap();
    let written = Written::default();
    // The devices' copies differ in size.
    let setup = |(index, ordinal): (usize, &u32)| {
        let (device, bytes) = (DeviceId::Cuda(*ordinal), (index + 1) << 20);
        let there = backend.allocate(device, MemoryKind::Device, bytes).unwrap();
        let here = backend.allocate(device, MemoryKind::Pinned, bytes).unwrap();
        (backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap(), here, there)
    };
    let queues: Vec<_> = ordinals.iter().enumerate().map(setup).collect();
    // The trace's times begin with this slice.
    profiler.start_trace(written.clone(), TraceFormat::Chrome, TraceOptions::new()).unwrap();
    let origin = Instant::now();
    let mut seen = vec![Vec::new(); queues.len()];
    while origin.elapsed() < Duration::from_millis(1200) {
        for ((queue, here, there), seen) in queues.iter().zip(&mut seen) {
            let before = origin.elapsed();
            submit(&**queue, &Operation::Copy { src: here, dst: there }, Timing::Off)
                .unwrap()
                .wait()
                .unwrap();
            seen.push((before, origin.elapsed()));
        }
        let next = origin.elapsed() + Duration::from_millis(10);
        while origin.elapsed() < next {
            std::hint::spin_loop();
        }
    }
    profiler.finish_trace().unwrap();
    // All have the host's rate, at one unknown distance: that of the first one bounds it.
    let micros = |slice: &serde_json::Value, field: &str| slice[field].as_f64().unwrap();
    let (mut lowest, mut highest, mut error) = (f64::MIN, f64::MAX, 0.0_f64);
    for (index, seen) in seen.iter().enumerate() {
        let is_of_device = |slice: &serde_json::Value| {
            slice["args"]["pieces"].is_number() && slice["args"]["bytes"] == (index + 1) << 20
        };
        let slices: Vec<_> = written.slices().into_iter().filter(is_of_device).collect();
        assert_eq!(slices.len(), seen.len());
        let is_submission = |slice: &serde_json::Value| {
            slice["args"]["pieces"].is_null() && slice["args"]["bytes"] == (index + 1) << 20
        };
        let submissions: Vec<_> = written.slices().into_iter().filter(is_submission).collect();
        assert_eq!(submissions.len(), seen.len());
        for ((slice, submission), (before, after)) in slices.iter().zip(&submissions).zip(seen) {
            let begin = micros(slice, "ts");
            assert!(begin >= micros(submission, "ts"), "{slice} begins before {submission}");
            lowest = lowest.max(begin + micros(slice, "dur") - after.as_secs_f64() * 1e6);
            highest = highest.min(begin - before.as_secs_f64() * 1e6);
            error = error.max(micros(&slice["args"], "clock_error_ns") / 1e3);
        }
    }
    assert!(lowest <= highest + 2.0 * error, "{lowest} µs > {highest} µs, stated error {error} µs");
}

/// Ends threads, also if their test fails.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn profiler_is_toggled_and_replaced_while_streams_run() {
    let (test, backend, first) = setup();
    drop(first);
    let (device, stop) = (DeviceId::Cuda(test.ordinal()), AtomicBool::new(false));
    let submitted = AtomicU64::new(0);
    let work = || {
        let allocate = |kind| backend.allocate(device, kind, 64 << 10).unwrap();
        let (here, there) = (allocate(MemoryKind::Pinned), allocate(MemoryKind::Device));
        let stream = CudaStream::new(backend.device(test.ordinal()).unwrap()).unwrap();
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..8 {
                submit(&stream, &Operation::Copy { src: &here, dst: &there }, Timing::Off).unwrap();
                submitted.fetch_add(1, Ordering::Relaxed);
            }
            stream.synchronize().unwrap();
        }
    };
    let more = |by: u64| {
        let before = submitted.load(Ordering::Relaxed);
        while submitted.load(Ordering::Relaxed) < before + by {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        let _ends = Stopping(&stop);
        (0..2).for_each(|_| _ = scope.spawn(work));
        for _ in 0..4 {
            let profiler = timing_all();
            profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
            let before = submitted.load(Ordering::Relaxed);
            for _ in 0..3 {
                profiler.enable().unwrap();
                more(4);
                profiler.disable();
                // In flight, and not counted.
                more(4);
            }
            // What was in flight when it was disabled ends.
            while profiler.get_comprehensive_report().outstanding > 0 {
                thread::yield_now();
            }
            let all = profiler.get_comprehensive_report();
            let operations = all.streams.iter().map(StreamReport::operations).sum::<u64>();
            let kinds = all.streams.iter().flat_map(|stream| &stream.kinds);
            let (timed, bytes) =
                kinds.fold((0, 0), |sum, kind| (sum.0 + kind.running.count, sum.1 + kind.bytes));
            let most = submitted.load(Ordering::Relaxed) + 2 - before;
            assert!((1..=most).contains(&operations), "{operations} of {most}: {all}");
            assert_eq!((all.lost, bytes), (0, operations << 16), "{all}");
            let unresolved = all.streams.iter().map(|stream| stream.unresolved).sum::<u64>();
            // One of each stream that is enqueued while it is disabled may be counted alone.
            assert!(unresolved == 0 && timed <= operations && operations <= timed + 2 * 3, "{all}");
            assert!(all.directions.iter().all(|it| !it.all_timed && it.gaps.is_empty()), "{all}");
        }
    });
    backend.drain().unwrap();
}

#[test]
fn device_that_is_lost_leaves_counts_and_no_times() {
    // What a lost device had stays: no check at the end.
    let Some(test) = harness::device_with(|device| device.paced(OFFSET, DRIFT)) else { return };
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let (backend, profiler) = (pollster::block_on(CudaBackend::initialize(config)).unwrap(), timing_all());
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    profiler.enable().unwrap();
    let device = DeviceId::Cuda(test.ordinal());
    let there = backend.allocate(device, MemoryKind::Device, 1 << 20).unwrap();
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let fill = || submit(&*queue, &Operation::Fill { dst: &there, pattern: Pattern::U8(1) }, Timing::Off);
    fill().unwrap().wait().unwrap();
    assert_eq!(profiler.get_stream_report(&*queue).unwrap().kinds[0].running.count, 1);
    let in_flight = fill().unwrap();
    // An access that is not allowed.
    test.sim().unwrap().poison(700);
    in_flight.wait().unwrap_err();
    fill().unwrap_err();
    let all = profiler.get_comprehensive_report();
    let [stream] = &all.streams[..] else { panic!("{all}") };
    assert_eq!((stream.operations(), all.outstanding), (2, 0), "{all}");
    assert_eq!(stream.kinds[0].running.count + stream.unresolved, 2, "{all}");
    profiler.disable();
    assert!(profiler.enable().is_ok() && profiler.is_enabled());
}

#[test]
fn operations_of_a_transfer_flow_from_its_submission() {
    let (test, backend, profiler) = setup();
    let device = DeviceId::Cuda(test.ordinal());
    let manager = CrossBackendTransferManager::builder().observer(profiler.observer()).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Chrome, TraceOptions::new()).unwrap();
    let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 24 << 20).unwrap();
    let dst = manager.allocate(device, MemoryKind::Device, 24 << 20).unwrap();
    src.write().unwrap().fill(9);
    let report = manager.copy(&src, &dst).method(TransferMethod::HostStaged).wait().unwrap();
    let id = report.id.unwrap();
    profiler.finish_trace().unwrap();
    let text = written.text();
    let events: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let flow = format!("{:#x}", id.get());
    let of_flow = || events.iter().filter(|event| event["bind_id"] == flow[..]);
    assert_eq!(of_flow().filter(|event| event["name"] == "submit").count(), 1, "{text}");
    let chunks = of_flow().filter(|event| event["name"] == "copy" && event["flow_in"] == true).count();
    assert!(chunks > 1, "its chunks: {text}");
    let all = profiler.get_comprehensive_report();
    let [path] = &all.paths[..] else { panic!("{all}") };
    assert_eq!((path.sampled, path.sampled_bytes, path.failed), (1, 24 << 20, 0));
    let copied: u64 = all.directions.iter().map(|direction| direction.timed_bytes).sum();
    assert_eq!(copied, 24 << 20, "every chunk once");
    drop((src, dst));
    manager.drain().unwrap();
}

#[test]
fn stream_dropped_in_flight_is_still_resolved() {
    let (test, backend, profiler) = setup();
    let device = DeviceId::Cuda(test.ordinal());
    let there = backend.allocate(device, MemoryKind::Device, 1 << 20).unwrap();
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let fence =
        submit(&*queue, &Operation::Fill { dst: &there, pattern: Pattern::U8(1) }, Timing::Off).unwrap();
    drop(queue);
    fence.wait().unwrap();
    drop((fence, there));
    backend.drain().unwrap();
    drop(backend);
    let all = profiler.get_comprehensive_report();
    assert_eq!((all.streams[0].operations(), all.streams[0].unresolved, all.outstanding), (1, 0, 0), "{all}");
}

#[test]
fn many_timed_copies_use_few_events() {
    const COPIES: u64 = 5_000;
    let test = harness::device().end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = pollster::block_on(CudaBackend::initialize(config)).unwrap();
    let options = ProfilerOptions::new().sampling(OperationSampling::ALL).capacity(64);
    let profiler = StreamProfiler::new(options);
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    profiler.enable().unwrap();
    let device = DeviceId::Cuda(test.ordinal());
    let there = backend.allocate(device, MemoryKind::Device, 64).unwrap();
    let here = backend.allocate(device, MemoryKind::Pinned, 64).unwrap();
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    for _ in 0..COPIES {
        submit(&*queue, &Operation::Copy { src: &here, dst: &there }, Timing::Off).unwrap().wait().unwrap();
    }
    if let Some(sim) = test.sim() {
        let events = sim.live_objects().events;
        assert!(events <= 500, "{events} events");
    }
    let all = profiler.get_comprehensive_report();
    let [stream] = &all.streams[..] else { panic!("{all}") };
    assert_eq!((stream.operations(), all.outstanding), (COPIES, 0));
    assert_eq!(stream.kinds[0].running.count + all.lost, COPIES, "{all}");
}

#[test]
fn disabled_profiler_makes_no_driver_calls() {
    let (test, backend, profiler) = setup();
    let Some(sim) = test.sim() else { return };
    let device = DeviceId::Cuda(test.ordinal());
    let there = backend.allocate(device, MemoryKind::Device, 64).unwrap();
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let fill = || {
        let fill = Operation::Fill { dst: &there, pattern: Pattern::U8(1) };
        submit(&*queue, &fill, Timing::Off).unwrap().wait().unwrap();
    };
    fill();
    profiler.disable();
    // Enabled, it reads the clock each second. At first it may be collecting what was in flight.
    let is_quiet = || {
        let before = sim.calls();
        thread::sleep(Duration::from_millis(1_500));
        sim.calls() == before
    };
    assert!((0..4).any(|_| is_quiet()), "the profiler's thread goes on");
    profiler.enable().unwrap();
    fill();
    let before = sim.calls();
    while sim.calls() == before {
        // The thread was woken, and reads the clock.
        thread::yield_now();
    }
    assert_eq!(profiler.get_stream_report(&*queue).unwrap().operations(), 2);
}

/// Keeps what it is given.
#[derive(Default)]
struct Records(Mutex<Vec<OperationRecord>>);

impl OperationSink for Records {
    fn operation(&self, record: OperationRecord) {
        self.0.lock().push(record);
    }
}

#[test]
fn launch_is_passed_to_a_sink_as_a_kernel_of_its_transfer() {
    let (test, backend, profiler) = setup();
    profiler.disable();
    let records = Arc::new(Records::default());
    let sink: Arc<dyn OperationSink> = Arc::clone(&records) as _;
    backend.attach_sink(&sink, OperationSampling::ALL).unwrap();
    let device = backend.device(test.ordinal()).unwrap();
    let saxpy = include_str!("../../../streams/examples/kernels/saxpy.ptx");
    let kernel = CudaModule::from_ptx(device, saxpy).unwrap().kernel("transload_saxpy").unwrap();
    let stream = CudaStream::new(device).unwrap();
    let allocate = || backend.allocate(DeviceId::Cuda(test.ordinal()), MemoryKind::Device, 4000).unwrap();
    let (x, y) = (allocate(), allocate());
    for dst in [&x, &y] {
        submit(&stream, &Operation::Fill { dst, pattern: Pattern::U8(0) }, Timing::Off).unwrap();
    }
    let transfer = TransferId::if_wanted(Wanted::Times);
    let scope = TransferScope::enter(transfer);
    let launch = kernel.launch(LaunchConfig::for_elements(1000, 256)).arg(2.0_f32).reads(&x);
    // SAFETY: the kernel takes a float, two arrays of so many floats, and their number.
    let fence = unsafe { launch.reads_writes(&y).arg(1000_u64).enqueue(&stream) }.unwrap();
    drop(scope);
    fence.wait().unwrap();
    stream.occupy(Duration::from_micros(50)).unwrap().wait().unwrap();
    backend.detach_sink(&sink);
    let found = std::mem::take(&mut *records.0.lock());
    let found: Vec<_> = found.into_iter().map(|it| (it.queue, it.info, it.transfer)).collect();
    let id = stream.timeline().id();
    let info = |kind, bytes| OperationInfo { kind, path: None, bytes, pieces: 1 };
    let (fill, launch) = (info(OperationKind::Fill, 4000), info(OperationKind::Kernel, 0));
    assert_eq!(found, [(id, fill, None), (id, fill, None), (id, launch, transfer), (id, launch, None)]);
    drop((fence, kernel, x, y, stream, profiler, backend));
    test.assert_no_live_objects();
}
