//! Exact spans of engines next to those of events: by the software driver's CUPTI, and by NVIDIA's on a real driver.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    Backend, DeviceId, Engine, ErrorKind, MemoryKind, Operation, OperationKind, OperationSampling, Pattern,
    Queue, QueueLease, RawBuffer, StreamPriority, Timing, TransferMethod, WorkloadType, submit,
};
use transload_cuda_sim::harness::{self, EndCheck};
use transload_profiler::{Direction, ProfilerOptions, StreamProfiler, TraceFormat, TraceOptions};
use transload_transfer::CrossBackendTransferManager;

use crate::{Written, cuda, packets, timing_all};

/// What the software driver takes for a copy of 1 MiB: 6 µs, and 55 GB/s.
const MIB_NS: u64 = 6_000 + 19_065;

struct Recorded {
    backend: Arc<CudaBackend>,
    profiler: StreamProfiler,
    device: DeviceId,
    _test: EndCheck,
}

impl Recorded {
    /// On a device of virtual time; `None` on a real driver.
    fn new(sampling: OperationSampling) -> Option<Self> {
        let test = harness::device_with(|device| device)?.end_check();
        let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
        let backend = CudaBackend::open(&config).unwrap();
        let profiler = StreamProfiler::new(ProfilerOptions::new().sampling(sampling));
        profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
        profiler.enable().unwrap();
        profiler.record_engines().unwrap();
        Some(Self { backend, profiler, device: DeviceId::Cuda(test.ordinal()), _test: test })
    }

    fn queue(&self) -> QueueLease {
        self.backend.lease_queue(self.device, StreamPriority::Normal, WorkloadType::Memory).unwrap()
    }

    fn pair(&self, bytes: usize) -> (RawBuffer, RawBuffer) {
        let src = self.backend.allocate(self.device, MemoryKind::Pinned, bytes).unwrap();
        src.write().unwrap().fill(3);
        (src, self.backend.allocate(self.device, MemoryKind::Device, bytes).unwrap())
    }
}

fn copy(queue: &dyn Queue, (src, dst): &(RawBuffer, RawBuffer)) -> transload_core::Fence {
    submit(queue, &Operation::Copy { src, dst }, Timing::Off).unwrap()
}

#[test]
fn exact_spans_are_the_virtual_times_of_engines() {
    let Some(run) = Recorded::new(OperationSampling::ALL) else { return };
    let (queue, pair) = (run.queue(), run.pair(1 << 20));
    (0..3).for_each(|_| copy(&*queue, &pair).wait().unwrap());
    let fill = Operation::Fill { dst: &pair.1, pattern: Pattern::U8(0) };
    submit(&*queue, &fill, Timing::Off).unwrap().wait().unwrap();
    let report = run.profiler.get_comprehensive_report();
    let [copies, fills] = &report.streams[0].kinds[..] else { panic!("{report}") };
    assert_eq!((copies.exact.count, copies.exact.total_ns), (3, 3 * MIB_NS), "{report}");
    assert_eq!((copies.agreeing, fills.exact.count, fills.agreeing), (3, 1, 1), "{report}");
    // The spans of events have neither the time of an event in them, nor that in which an operation after one begins.
    assert!(copies.running.total_ns.abs_diff(copies.exact.total_ns) < 500, "{report}");
    let engines: Vec<_> =
        report.engines.iter().map(|it| (it.direction, it.engine, it.spans, it.bytes)).collect();
    let (copies, compute) = (Some(Engine::Copy), Some(Engine::Compute));
    let expected = [(Direction::ToDevice, copies, 3, 3 << 20), (Direction::Compute, compute, 1, 1 << 20)];
    assert_eq!(engines, expected, "{report}");
    assert_eq!((report.engines[0].busy_ns, report.engine_records_lost), (3 * MIB_NS, 0), "{report}");
    assert!(report.to_string().contains("to the device, copy engine: 3 records"), "{report}");
}

#[test]
fn exact_span_excludes_waiting_for_the_engine() {
    // If the collector asks for the end of the first copy before the second is submitted, neither waits.
    let rounds = (0..50).map_while(|_| Recorded::new(OperationSampling::ALL)).map(has_waited_for_the_engine);
    let rounds: Vec<_> = rounds
        .scan(false, |is_over, waited| (!std::mem::replace(is_over, waited)).then_some(waited))
        .collect();
    assert!(rounds.is_empty() || rounds.contains(&true), "in {} rounds no copy waited", rounds.len());
}

/// Copies on two queues. Returns whether one of the copies waited for the other.
fn has_waited_for_the_engine(run: Recorded) -> bool {
    let (one, two, pairs) = (run.queue(), run.queue(), [run.pair(16 << 20), run.pair(1 << 20)]);
    let fences = [copy(&*one, &pairs[0]), copy(&*two, &pairs[1])];
    fences.iter().for_each(|fence| fence.wait().unwrap());
    let report = run.profiler.get_comprehensive_report();
    let kinds: Vec<_> = report.streams.iter().map(|stream| &stream.kinds[0]).collect();
    let [large, small] = &kinds[..] else { panic!("{report}") };
    assert_eq!(small.exact.total_ns, MIB_NS, "{report}");
    let ran: u64 = [large, small].iter().map(|kind| kind.running.total_ns).sum();
    let exact = large.exact.total_ns + small.exact.total_ns;
    let [engine] = &report.engines[..] else { panic!("{report}") };
    assert_eq!((engine.busy_ns, engine.total_ns), (exact, exact), "one engine: {report}");
    let has_waited = large.agreeing + small.agreeing == 1;
    assert_eq!(has_waited, ran > exact + MIB_NS / 2, "the spans of events overlap: {report}");
    has_waited
}

/// A graph is one operation, of which each node has a record, and so is a batch, of several calls.
#[test]
fn exact_span_of_a_replay_covers_its_nodes() {
    let Some(run) = Recorded::new(OperationSampling::ALL) else { return };
    let (queue, pair) = (run.queue(), run.pair(1 << 20));
    let (copy, fill) = (
        Operation::Copy { src: &pair.0, dst: &pair.1 },
        Operation::Fill { dst: &pair.1, pattern: Pattern::U8(0) },
    );
    let recording = run.backend.record(run.device, StreamPriority::Normal, &[copy, fill]).unwrap();
    submit(&*queue, &Operation::Replay { recorded: &*recording }, Timing::Off).unwrap().wait().unwrap();
    let half = |of: &RawBuffer, at: usize| of.slice(at << 19..(at + 1) << 19).unwrap();
    let pairs = [0, 1].map(|at| (half(&pair.0, at), half(&pair.1, 1 - at)));
    submit(&*queue, &Operation::CopyBatch { pairs: &pairs }, Timing::Off).unwrap().wait().unwrap();
    let report = run.profiler.get_comprehensive_report();
    let kind = |wanted| {
        let mut kinds = report.streams.iter().flat_map(|stream| &stream.kinds);
        kinds.find(|kind| kind.kind == wanted).unwrap()
    };
    let (replay, batch) = (kind(OperationKind::Replay), kind(OperationKind::CopyBatch));
    // The fill takes 2 µs, and 2 TB/s.
    let fill = 2_000 + 524;
    assert_eq!((replay.exact.count, replay.agreeing), (1, 1), "{report}");
    assert!((MIB_NS + fill..MIB_NS + fill + 2_000).contains(&replay.exact.total_ns), "{report}");
    // Two calls, each of 6 µs and half of the bytes.
    assert_eq!(
        (batch.exact.count, batch.exact.total_ns.abs_diff(MIB_NS + 6_000) <= 2),
        (1, true),
        "{report}"
    );
    let spans: Vec<_> = report.engines.iter().map(|it| (it.direction, it.spans, it.bytes)).collect();
    assert_eq!(spans, [(Direction::ToDevice, 3, 2 << 20), (Direction::Compute, 1, 1 << 20)], "{report}");
}

/// Work that is not timed is an engine's all the same, and no operation's.
#[test]
fn untimed_work_is_recorded_and_is_no_operations() {
    let Some(run) = Recorded::new(OperationSampling { all_from_bytes: 1 << 20, one_in: 0 }) else { return };
    let (queue, large, small) = (run.queue(), run.pair(1 << 20), run.pair(4096));
    let written = Written::default();
    run.profiler.start_trace(written.clone(), TraceFormat::Chrome, TraceOptions::new()).unwrap();
    copy(&*queue, &large).wait().unwrap();
    (0..10).for_each(|_| copy(&*queue, &small).wait().unwrap());
    let report = run.profiler.get_comprehensive_report();
    let kind = &report.streams[0].kinds[0];
    assert_eq!((kind.operations, kind.exact.count, kind.exact.total_ns), (11, 1, MIB_NS), "{report}");
    assert_eq!((report.engines[0].spans, report.engines[0].bytes), (11, (1 << 20) + 40_960), "{report}");
    run.profiler.finish_trace().unwrap();
    let exact = written.slices().iter().filter(|slice| slice["args"]["exact_ns"].is_number()).count();
    assert_eq!(exact, 11, "{}", written.text());
    run.profiler.disable();
    copy(&*queue, &large).wait().unwrap();
    let after = run.profiler.get_comprehensive_report();
    let [before, after] =
        [report, after].map(|it| (it.engines[0].spans, it.engines[0].busy_ns, it.engines.len()));
    assert_eq!(after, before, "nothing is recorded any more");
}

/// The records of a kernel in flight are missing, so that nothing tells what is between the others.
#[test]
fn gaps_and_shares_are_not_known_while_work_is_in_flight() {
    // Whether the kernel is seen in flight depends on what the software driver runs first.
    for run in (0..20).map_while(|_| Recorded::new(OperationSampling::ALL)) {
        let (queue, other, pair) = (run.queue(), run.queue(), run.pair(1 << 20));
        (0..3).for_each(|_| copy(&*queue, &pair).wait().unwrap());
        other.occupy(Duration::from_millis(30)).unwrap();
        let engine = || run.profiler.get_comprehensive_report().engines.swap_remove(0);
        let meanwhile = engine();
        run.backend.drain().unwrap();
        let after = engine();
        assert_eq!((after.gaps.is_empty(), after.is_cut), (false, false), "{after}");
        assert_eq!(meanwhile.gaps.is_empty(), meanwhile.is_cut, "{meanwhile}");
    }
}

/// Migrations have the virtual times of prefetches, and stand next to the buffers that have names.
#[test]
fn migrations_stand_next_to_their_buffers() {
    let Some(run) = Recorded::new(OperationSampling::ALL) else { return };
    let allocate = || {
        let buffer = run.backend.allocate(run.device, MemoryKind::Unified, 1 << 20).unwrap();
        buffer.write().unwrap().fill(1);
        buffer
    };
    let (weights, other) = (allocate(), allocate());
    run.profiler.name_buffer(&weights, "weights").unwrap();
    let refused = run.profiler.name_buffer(&run.pair(64).0, "pinned").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let queue = run.queue();
    let prefetch = |buffer: &RawBuffer, to| {
        let prefetch = Operation::Prefetch { buffer, to };
        submit(&*queue, &prefetch, Timing::Off).unwrap().wait().unwrap();
    };
    prefetch(&weights, run.device);
    prefetch(&other, run.device);
    prefetch(&weights, DeviceId::Cpu);
    prefetch(&weights, run.device);
    assert_eq!(weights.read().unwrap()[0], 1, "page faults of the host");
    let report = run.profiler.get_comprehensive_report();
    assert_eq!(report.without_migrations, None, "{report}");
    let of = |device, name: Option<&str>| {
        let mut reports = report.migrations.iter();
        reports.find(|it| it.device == device && it.buffer.as_deref() == name).unwrap()
    };
    let (all, named) = (of(run.device, None), of(run.device, Some("weights")));
    assert_eq!((all.bytes_to_device, named.bytes_to_device), (3 << 20, 2 << 20), "{report}");
    assert!(named.bytes_to_host >= 1 << 20 && named.to_device_by_faults == 0, "{report}");
    // Each prefetch takes as long as a copy, but for the rate between two clocks; those of the host's page fault are not timed.
    let is_of = |busy: u64, prefetches: u64| busy.abs_diff(prefetches * MIB_NS) < prefetches * MIB_NS / 1000;
    assert!(is_of(all.busy_ns, 4) && is_of(named.busy_ns, 3), "{report}");
    assert!(of(DeviceId::Cpu, Some("weights")).faults > 0, "{report}");
    assert!(report.to_string().contains("migrations of \"weights\" and cuda:"), "{report}");
}

/// On a device whose clock runs with the host's: of another one, places mean nothing.
#[test]
fn migrations_are_counters_of_a_trace() {
    let (test, backend, profiler) = cuda::setup();
    let device = DeviceId::Cuda(test.ordinal());
    let recorded = profiler.record_engines();
    if let Some(why) = recorded.err().map(|error| error.to_string()) {
        println!("skipped: {why}");
        return;
    }
    let report = profiler.get_comprehensive_report();
    if let Some(why) = report.without_migrations.filter(|_| !test.is_simulated()) {
        println!("skipped: {why}");
        return;
    }
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    let buffer = backend.allocate(device, MemoryKind::Unified, 1 << 20).unwrap();
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let prefetch = |to| {
        submit(&*queue, &Operation::Prefetch { buffer: &buffer, to }, Timing::Off).unwrap().wait().unwrap();
    };
    for _ in 0..3 {
        buffer.write().unwrap().fill(1);
        prefetch(device);
        prefetch(DeviceId::Cpu);
    }
    profiler.finish_trace().unwrap();
    let trace = packets::read(&written.0.lock()).unwrap();
    let report = profiler.get_comprehensive_report();
    let all = report.migrations.iter().find(|it| it.device == device && it.buffer.is_none()).unwrap();
    let drawn = trace.drawn();
    for (direction, bytes) in [("to the device", all.bytes_to_device), ("from the device", all.bytes_to_host)]
    {
        let points = trace.points(&format!("migrated {direction}, total"));
        assert_eq!((points[0].1, points.last().unwrap().1 as u64), (0.0, bytes), "{points:?}");
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 < b.1), "{points:?}");
        let slices = drawn.iter().filter(|slice| slice.row == format!("migrations {direction}"));
        let ends: Vec<u64> = slices.map(|slice| slice.end).collect();
        assert!(bytes > 0 && points[1..].iter().all(|(at, _)| ends.contains(at)), "{points:?}, {ends:?}");
    }
    assert_eq!(without_migrations(&trace), None);
}

/// What a trace says of its lack of migrations.
fn without_migrations(trace: &packets::Trace) -> Option<String> {
    let mut said = trace.events().flat_map(|(_, event)| &event.arguments);
    said.find(|(name, _)| name == "without migrations").map(|(_, why)| why.clone())
}

#[test]
fn trace_without_records_of_engines_says_that_migrations_are_absent() {
    let (_test, backend, profiler) = cuda::setup();
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    profiler.finish_trace().unwrap();
    let trace = packets::read(&written.0.lock()).unwrap();
    assert!(trace.rows().values().all(|row| !row.name.starts_with("migrated")));
    assert_eq!(without_migrations(&trace).as_deref(), Some("no records of engines were requested"));
    drop(backend);
}

#[test]
fn recording_is_refused_with_the_causes() {
    let profiler = timing_all();
    assert_eq!(profiler.record_engines().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let cpu = CpuBackend::new().unwrap();
    profiler.attach(&(Arc::clone(&cpu) as _)).unwrap();
    profiler.enable().unwrap();
    let error = profiler.record_engines().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("cpu: the cpu backend does not support"), "{error}");
    let Some(run) = Recorded::new(OperationSampling::ALL) else { return };
    assert_eq!(run.profiler.record_engines().unwrap_err().kind(), ErrorKind::Busy);
    run.profiler.disable();
    run.profiler.enable().unwrap();
    run.profiler.record_engines().unwrap();
}

/// In a trace, the work of each chunk lies within its operation's slice, and flows from the transfer's submission.
#[test]
fn exact_slices_lie_within_those_of_their_operations() {
    let (test, backend, profiler) = cuda::setup();
    if let Err(error) = profiler.record_engines() {
        println!("skipped: {error}");
        return;
    }
    let device = DeviceId::Cuda(test.ordinal());
    let manager = CrossBackendTransferManager::builder().observer(profiler.observer()).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Chrome, TraceOptions::new()).unwrap();
    let src = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 24 << 20).unwrap();
    let dst = manager.allocate(device, MemoryKind::Device, 24 << 20).unwrap();
    src.write().unwrap().fill(9);
    manager.copy(&src, &dst).method(TransferMethod::HostStaged).wait().unwrap();
    drop((src, dst));
    manager.drain().unwrap();
    profiler.finish_trace().unwrap();
    let number = |slice: &serde_json::Value, field: &str| slice[field].as_f64().unwrap();
    let slices = written.slices();
    let with =
        |argument: &'static str| slices.iter().filter(move |slice| slice["args"][argument].is_number());
    let (operations, exact): (Vec<_>, Vec<_>) = (with("pieces").collect(), with("exact_ns").collect());
    let bytes: f64 = exact.iter().map(|slice| number(&slice["args"], "bytes")).sum();
    assert_eq!((exact.len(), bytes as u64), (operations.len(), 24 << 20), "each chunk once");
    for work in exact {
        let (begin, end) = (number(work, "ts"), number(work, "ts") + number(work, "dur"));
        let contains = |operation: &&&serde_json::Value| {
            let error = |slice: &serde_json::Value| number(&slice["args"], "clock_error_ns") / 1e3;
            let error = error(work) + error(operation);
            let from = number(operation, "ts");
            let is_same = operation["args"]["bytes"] == work["args"]["bytes"];
            is_same && from <= begin + error && end <= from + number(operation, "dur") + error
        };
        assert!(operations.iter().any(|operation| contains(&operation)), "{work} in {operations:?}");
        assert!(work["flow_in"] == true, "{work}");
    }
}

/// The check of events against CUPTI: copies in both directions and within the device, and fills, each queued behind a kernel, so that the stream
/// reaches none before it was enqueued. Prints the share that agrees, by length, and the same for operations on an idle stream.
#[test]
fn event_spans_agree_with_those_of_engines() {
    /// So often each; the kernel lasts while they are enqueued.
    const TIMES: u64 = 50;
    const KERNEL: Duration = Duration::from_millis(5);
    let test = harness::device().end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = CudaBackend::open(&config).unwrap();
    let profiler = timing_all();
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    profiler.enable().unwrap();
    if let Err(error) = profiler.record_engines() {
        println!("skipped: {error}");
        return;
    }
    let device = DeviceId::Cuda(test.ordinal());
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let (mut agreeing, mut all) = (0, 0);
    for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let here = backend.allocate(device, MemoryKind::Pinned, bytes).unwrap();
        let [there, again] = [(); 2].map(|()| backend.allocate(device, MemoryKind::Device, bytes).unwrap());
        here.write().unwrap().fill(1);
        let operations = [
            ("up", Operation::Copy { src: &here, dst: &there }),
            ("down", Operation::Copy { src: &there, dst: &here }),
            ("within", Operation::Copy { src: &there, dst: &again }),
            ("fill", Operation::Fill { dst: &there, pattern: Pattern::U8(1) }),
        ];
        for (name, operation) in operations {
            let start = Counts::of(&profiler, &*queue);
            queue.occupy(KERNEL).unwrap();
            let enqueue = |_| submit(&*queue, &operation, Timing::Off).unwrap();
            (1..TIMES).for_each(|number| _ = enqueue(number));
            enqueue(0).wait().unwrap();
            let queued = Counts::of(&profiler, &*queue);
            (0..TIMES).for_each(|number| enqueue(number).wait().unwrap());
            let (idle, queued) = (Counts::of(&profiler, &*queue).since(queued), queued.since(start));
            println!("{bytes} {name}: queued {queued}; on an idle stream {idle}");
            for counts in [queued, idle] {
                assert_eq!(counts.exact, TIMES, "each has a record");
                assert!(counts.ran + 2_000 * TIMES >= counts.took, "events are within the exact span");
            }
            (agreeing, all) = (agreeing + queued.agree, all + TIMES);
        }
    }
    println!("event spans within 2 µs + 1 % of the exact ones: {agreeing} of {all}");
    if test.is_simulated() {
        assert_eq!(agreeing, all);
    }
}

/// What records cost: printed on a real driver, whose CUPTI slows its calls.
#[test]
fn copies_go_on_after_engines_were_recorded() {
    const COPIES: u32 = 2000;
    let (test, backend, profiler) = cuda::setup();
    let device = DeviceId::Cuda(test.ordinal());
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let [here, there] =
        [MemoryKind::Pinned, MemoryKind::Device].map(|kind| backend.allocate(device, kind, 4096).unwrap());
    let copies = if test.is_simulated() { 20 } else { COPIES };
    let time = |what: &str| {
        let begun = Instant::now();
        for _ in 0..copies {
            submit(&*queue, &Operation::Copy { src: &here, dst: &there }, Timing::Off)
                .unwrap()
                .wait()
                .unwrap();
        }
        if !test.is_simulated() {
            println!("a waited copy of 4 KiB, {what}: {:.2?}", begun.elapsed() / copies);
        }
    };
    profiler.disable();
    time("not profiled");
    profiler.enable().unwrap();
    time("timed by events");
    if let Err(error) = profiler.record_engines() {
        println!("skipped: {error}");
        return;
    }
    time("with records of engines");
    profiler.disable();
    time("afterwards");
    let report = profiler.get_comprehensive_report();
    // A driver lets some short copies of pinned memory to a kernel.
    let spans = report.engines.iter().map(|engine| engine.spans).sum::<u64>();
    assert_eq!(spans, u64::from(copies), "{report}");
}

/// Copies and fills of a stream, and the sums of their spans.
#[derive(Clone, Copy, Default)]
struct Counts {
    operations: u64,
    exact: u64,
    agree: u64,
    ran: u64,
    took: u64,
}

impl Counts {
    /// Once all records have come: those of a real driver may come after the events.
    fn of(profiler: &StreamProfiler, queue: &dyn Queue) -> Self {
        let begun = Instant::now();
        loop {
            let report = profiler.get_stream_report(queue);
            let mut sums = Self::default();
            let kinds = report.iter().flat_map(|report| &report.kinds);
            for kind in kinds.filter(|kind| kind.kind != OperationKind::Kernel) {
                sums.operations += kind.operations;
                sums.exact += kind.exact.count;
                sums.agree += kind.agreeing;
                sums.ran += kind.running.total_ns;
                sums.took += kind.exact.total_ns;
            }
            if sums.exact == sums.operations || begun.elapsed() > Duration::from_secs(10) {
                return sums;
            }
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            operations: self.operations - before.operations,
            exact: self.exact - before.exact,
            agree: self.agree - before.agree,
            ran: self.ran - before.ran,
            took: self.took - before.took,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exact, agree, ran, took, .. } = *self;
        let mean = |sum: u64| sum as f64 / exact.max(1) as f64 / 1e3;
        write!(f, "{agree} of {exact} agree, mean {:.2} µs by events, {:.2} µs exact", mean(ran), mean(took))
    }
}
