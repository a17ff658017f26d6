//! Counters and whole transfers in traces, read back.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    Backend, DeviceId, MemoryKind, Operation, OperationSampling, RawBuffer, StreamPriority, Timing,
    TransferMethod, TransferPath, WorkloadType, submit,
};
use transload_cuda_sim::harness;
use transload_profiler::{ProfilerOptions, StreamProfiler, TraceFormat, TraceOptions, TransferLog, Unit};
use transload_transfer::CrossBackendTransferManager;

use crate::{
    Written,
    cuda::setup,
    packets::{self, Trace},
    timing_all,
};

/// Ends a trace in which nothing is missing.
fn read(profiler: &StreamProfiler, written: &Written) -> Trace {
    let summary = profiler.finish_trace().unwrap();
    assert_eq!((summary.records_lost, summary.unfinished), (0, 0), "{summary}");
    packets::read(&written.0.lock()).unwrap()
}

/// Returns the sum of value times seconds.
fn integral(points: &[(u64, f64)]) -> f64 {
    points.windows(2).map(|pair| pair[0].1 * (pair[1].0 - pair[0].0) as f64 / 1e9).sum()
}

#[test]
fn counters_of_a_device_are_those_of_its_operations() {
    let (test, backend, profiler) = setup();
    let device = DeviceId::Cuda(test.ordinal());
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    let (large, small) = (64_u64 << 20, 1_u64 << 20);
    let allocate = |kind, bytes: u64| backend.allocate(device, kind, bytes as usize).unwrap();
    let (from, to) = (allocate(MemoryKind::Pinned, large), allocate(MemoryKind::Device, large));
    let (here, there) = (allocate(MemoryKind::Pinned, small), allocate(MemoryKind::Device, small));
    let lease = || backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    // Of two streams, so that their ends come in any order.
    let (one, two) = (lease(), lease());
    let first = submit(&*one, &Operation::Copy { src: &from, dst: &to }, Timing::Off).unwrap();
    let second = submit(&*two, &Operation::Copy { src: &here, dst: &there }, Timing::Off).unwrap();
    let third = submit(&*two, &Operation::Copy { src: &there, dst: &here }, Timing::Off).unwrap();
    [first, second, third].iter().for_each(|fence| fence.wait().unwrap());
    let trace = read(&profiler, &written);

    let in_flight = trace.points("bytes in flight (timed operations)");
    assert!(in_flight.is_sorted_by_key(|(at, _)| *at), "{in_flight:?}");
    let most = in_flight.iter().fold(0.0, |most: f64, (_, value)| most.max(*value));
    assert!(most >= large as f64 && most <= (large + 2 * small) as f64, "{in_flight:?}");
    assert_eq!(in_flight.last().unwrap().1, 0.0);

    for (direction, bytes) in [("to the device", large + small), ("from the device", small)] {
        let points = trace.points(&format!("rate {direction} (timed operations)"));
        let moved = integral(&points);
        // The rates are whole numbers, and so are the nanoseconds.
        assert!((moved - bytes as f64).abs() < 4.0, "{direction}: {moved} of {bytes}, {points:?}");
        assert_eq!(points.last().unwrap().1, 0.0);
        if test.is_simulated() {
            // 55 GB/s of virtual time each; two copies may overlap, since spans include waiting for the engine.
            assert!(points.iter().all(|(_, rate)| *rate <= 2.0 * 55e9 * 1.001), "{points:?}");
        }
    }
    let spans = trace.drawn().into_iter().filter(|slice| slice.row.starts_with("stream "));
    let spans: u64 = spans.filter(|slice| slice.name == "copy").map(|slice| slice.end - slice.begin).sum();
    assert!(integral(&in_flight) >= spans as f64 / 1e9 * small as f64, "from their enqueueing on");
}

/// On the software driver's own time, whose lengths do not depend on this machine.
#[test]
fn lengths_and_rates_in_virtual_time_are_exact() {
    let test = harness::device_like(|device| device);
    let (is_simulated, test) = (test.is_simulated(), test.end_check());
    let device = DeviceId::Cuda(test.ordinal());
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = CudaBackend::open(&config).unwrap();
    let (profiler, written) = (timing_all(), Written::default());
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    profiler.enable().unwrap();
    let allocate = |kind| backend.allocate(device, kind, 64 << 20).unwrap();
    let (from, to) = (allocate(MemoryKind::Pinned), allocate(MemoryKind::Device));
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let copy =
        || submit(&*queue, &Operation::Copy { src: &from, dst: &to }, Timing::Off).unwrap().wait().unwrap();
    // Until it is known that the clock is not the host's.
    copy();
    while is_simulated && profiler.get_comprehensive_report().clocks.iter().all(|clock| clock.follows_host) {
        copy();
    }
    // What ended before belongs to no trace once its time is known.
    let _known = profiler.get_comprehensive_report();
    profiler.start_trace(written.clone(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    copy();
    let trace = read(&profiler, &written);
    let spans: Vec<_> = trace.drawn().into_iter().filter(|slice| slice.row.starts_with("stream ")).collect();
    let [span] = &spans[..] else { panic!("{spans:?}") };
    // 6 µs, 64 MiB at 55 GB/s, and the time of an event.
    let took = span.end - span.begin;
    assert!(!is_simulated || (1_226_000..1_232_000).contains(&took), "{took}");
    let rate = trace.points("rate to the device (timed operations)");
    let expected = (64_u128 << 20) * 1_000_000_000 / u128::from(took);
    assert_eq!(rate.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [expected as f64, 0.0]);
    assert_eq!(rate[1].0 - rate[0].0, took);
}

#[test]
fn memory_and_gauges_are_counters() {
    let (test, backend, profiler) = setup();
    let written = Written::default();
    let value = Arc::new(AtomicU64::new(3));
    let read_value = Arc::clone(&value);
    profiler.add_gauge("mine", Unit::Other("°C"), move || match read_value.load(Ordering::Relaxed) {
        0 => None,
        value => Some(value as f64 / 2.0),
    });
    let device_bytes = || backend.device_bytes(DeviceId::Cuda(test.ordinal())).unwrap();
    // Of the host: no part of the device's.
    let pinned = backend.allocate(DeviceId::Cuda(test.ordinal()), MemoryKind::Pinned, 32 << 20).unwrap();
    let (before, device_before) = (backend.resource_counts().bytes, device_bytes());
    assert!(device_before + pinned.len() as u64 <= before);
    profiler.start_trace(written.clone(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    let held = backend.allocate(DeviceId::Cuda(test.ordinal()), MemoryKind::Device, 8 << 20).unwrap();
    let (while_held, on_device) = (backend.resource_counts().bytes, device_bytes());
    assert!(on_device >= device_before + (8 << 20));
    for next in [0, 4, 4] {
        value.store(next, Ordering::Relaxed);
        drop(profiler.get_comprehensive_report());
    }
    drop(held);
    backend.drain().unwrap();
    let (after, device_after) = (backend.resource_counts().bytes, device_bytes());
    let trace = read(&profiler, &written);
    let memory: Vec<_> =
        trace.points("allocated by cuda").into_iter().map(|(_, bytes)| bytes as u64).collect();
    assert_eq!((memory.first(), memory.last()), (Some(&before), Some(&after)));
    assert!(memory.contains(&while_held), "{memory:?}");
    assert!(while_held >= before + (8 << 20));
    let group = trace.row("device memory").parent;
    assert!(trace.rows()[&group].name.starts_with(&DeviceId::Cuda(test.ordinal()).to_string()));
    let of_device = |bytes: u64| (bytes, trace.points("device memory").iter().any(|it| it.1 as u64 == bytes));
    assert_eq!([of_device(on_device), of_device(device_before)], [(on_device, true), (device_before, true)]);
    assert_eq!(trace.points("device memory").last().unwrap().1 as u64, device_after);
    let mine: Vec<_> = trace.points("mine").into_iter().map(|(_, value)| value).collect();
    assert_eq!(mine, [1.5, 2.0], "once while it does not change");
}

#[test]
fn gauge_with_the_name_of_a_backends_memory_has_a_row_of_its_own() {
    let (backend, profiler, written) = (CpuBackend::new().unwrap(), timing_all(), Written::default());
    profiler.attach(&(backend.clone() as _)).unwrap();
    for value in [-1.0, -2.0] {
        profiler.add_gauge("allocated by cpu", Unit::Count, move || Some(value));
    }
    profiler.enable().unwrap();
    profiler.start_trace(written.clone(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    let _held = backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 1000).unwrap();
    let trace = read(&profiler, &written);
    let of = |name: &str| trace.points(name).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
    assert_eq!(of("allocated by cpu"), [0.0, 1000.0]);
    let mut own = ["allocated by cpu (2)", "allocated by cpu (3)"].map(of);
    own.sort_by(|one, other| one.partial_cmp(other).unwrap());
    assert_eq!(own, [[-2.0], [-1.0]]);
}

#[test]
fn transfer_without_a_handle_is_drawn_with_its_end() {
    let (test, backend, profiler) = setup();
    let device = DeviceId::Cuda(test.ordinal());
    let manager = CrossBackendTransferManager::builder().observer(profiler.observer()).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    let allocate = |device, kind| manager.allocate(device, kind, 24 << 20).unwrap();
    let (pinned, pageable) =
        (allocate(device, MemoryKind::Pinned), allocate(DeviceId::Cpu, MemoryKind::Pageable));
    let there = allocate(device, MemoryKind::Device);
    pinned.write().unwrap().fill(1);
    pageable.write().unwrap().fill(2);
    drop(manager.copy(&pinned, &there).submit());
    drop(manager.copy(&pageable, &there).method(TransferMethod::HostStaged).submit());
    manager.drain().unwrap();
    manager.copy(&there, &pinned).wait().unwrap();
    let trace = read(&profiler, &written);
    let names = |src: &RawBuffer, dst: &RawBuffer| {
        let path = TransferPath { src: src.place(), dst: dst.place() }.to_string();
        let drawn = trace.drawn().into_iter().filter(|slice| slice.row == path);
        drawn.map(|slice| (slice.name, slice.end > slice.begin)).collect::<Vec<_>>()
    };
    assert_eq!(names(&pinned, &there), [("DirectCopy".to_owned(), true)]);
    assert_eq!(names(&pageable, &there), [("HostStaged".to_owned(), true)]);
    assert_eq!(names(&there, &pinned), [("DirectCopy".to_owned(), true)]);
    let outcomes = trace.events().flat_map(|(_, event)| &event.arguments).filter(|it| it.0 == "outcome");
    assert!(outcomes.map(|it| &it.1[..]).eq(["completed"; 3]));
}

#[test]
fn all_operations_of_a_transfer_that_is_taken_are_timed() {
    let test = harness::device().end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = pollster::block_on(CudaBackend::initialize(config)).unwrap();
    let bytes = 24 << 20;
    // The transfer is large, its chunks are not.
    let sampling = OperationSampling { all_from_bytes: bytes as u64, one_in: 0 };
    let profiler = StreamProfiler::new(ProfilerOptions::new().sampling(sampling));
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    profiler.enable().unwrap();
    let manager = CrossBackendTransferManager::builder().observer(profiler.observer()).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let device = DeviceId::Cuda(test.ordinal());
    let allocate = |device, kind| manager.allocate(device, kind, bytes).unwrap();
    let (there, pageable) =
        (allocate(device, MemoryKind::Device), allocate(DeviceId::Cpu, MemoryKind::Pageable));
    pageable.write().unwrap().fill(2);
    let copy = |bytes| {
        let (src, dst) = (pageable.slice(..bytes).unwrap(), there.slice(..bytes).unwrap());
        let report = manager.copy(&src, &dst).method(TransferMethod::HostStaged).wait().unwrap();
        let streams = profiler.get_comprehensive_report().streams;
        let timed: u64 = streams.iter().flat_map(|stream| &stream.kinds).map(|kind| kind.running.count).sum();
        (report, timed, streams.len() as u64)
    };
    let (small, before, _) = copy(bytes / 2);
    assert_eq!(small.id, None);
    let (large, after, streams) = copy(bytes);
    assert!(large.id.is_some() && large.chunks > 1, "{large}");
    assert!(after - before >= u64::from(large.chunks), "{before}, {after}, {large}");
    // The first of each stream is timed.
    let (_, last, streams_at_last) = copy(bytes / 2);
    assert_eq!(last - after, streams_at_last - streams);
}

#[test]
fn list_that_is_copied_pair_by_pair_is_one_slice_of_its_path() {
    const PAIRS: usize = 3;
    const BYTES: usize = 1 << 20;
    let (test, backend, profiler) = setup();
    let device = DeviceId::Cuda(test.ordinal());
    let manager = CrossBackendTransferManager::builder().observer(profiler.observer()).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let allocate = |kind| manager.allocate(device, kind, PAIRS * BYTES).unwrap();
    // No list is made of copies of unified memory.
    let (src, dst) = (allocate(MemoryKind::Pinned), allocate(MemoryKind::Unified));
    src.write().unwrap().fill(5);
    let part = |of: &RawBuffer, at: usize| of.slice(at * BYTES..(at + 1) * BYTES).unwrap();
    let pairs: Vec<_> = (0..PAIRS).map(|at| (part(&src, at), part(&dst, PAIRS - 1 - at))).collect();
    let path = TransferPath { src: src.place(), dst: dst.place() };
    let list = (PAIRS as u64, BYTES as u64);
    assert_eq!(manager.plan_many(path.src, path.dst, list, false).unwrap().way, None);
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    let copied = manager.copy_many(&pairs).wait().unwrap();
    assert!(dst.read().unwrap().iter().all(|byte| *byte == 5));
    let trace = read(&profiler, &written);
    let rows = trace.rows();
    let of_path: Vec<_> = trace
        .events()
        .filter(|(_, event)| event.kind == 1 && rows[&event.row].name == path.to_string())
        .map(|(_, event)| event.arguments.iter().find(|it| it.0 == "bytes").unwrap().1.clone())
        .collect();
    assert_eq!(of_path, [(PAIRS * BYTES).to_string()]);
    let id = copied.groups[0].id.unwrap().get();
    let flows = trace.events().filter(|(_, event)| event.flows.contains(&id)).count();
    assert!(flows > PAIRS, "its submission, and the operations of its pairs: {flows}");
    let report = profiler.get_comprehensive_report();
    let [of_path] = &report.paths[..] else { panic!("{report}") };
    assert_eq!((of_path.sampled, of_path.sampled_bytes), (1, (PAIRS * BYTES) as u64), "{report}");
    assert_eq!(of_path.timed, 0, "not a transfer in one piece");
}

/// Another observer wants no times of it, so its submission is not told here; its operation is timed by the stream's own sampling.
#[test]
fn operation_of_a_transfer_that_another_observer_follows_has_its_own_submission() {
    let (test, backend, profiler) = setup();
    let device = DeviceId::Cuda(test.ordinal());
    let log = Arc::new(TransferLog::with_capacity(8));
    let manager = CrossBackendTransferManager::builder().observer(Arc::clone(&log) as _).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let allocate = |kind| manager.allocate_for(device, kind, 4096).unwrap();
    let (from, to) = (allocate(MemoryKind::Pinned), allocate(MemoryKind::Device));
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    manager.copy(&from, &to).wait().unwrap();
    let trace = read(&profiler, &written);
    assert_eq!(log.totals().completed, 1);
    let drawn = trace.drawn();
    let on_stream = drawn.iter().filter(|slice| slice.row.starts_with("stream ")).count();
    let by_thread =
        drawn.iter().filter(|slice| slice.name.starts_with("copy") && !slice.row.starts_with("stream "));
    assert_eq!((on_stream, by_thread.count()), (1, 1), "{drawn:?}");
}
