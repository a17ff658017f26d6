//! Queues of the host.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use transload_backend_cpu::CpuBackend;
use transload_core::{
    Backend, DeviceId, ErrorKind, MemoryKind, Operation, OperationKind, OperationSampling, QueueLease, Stamp,
    StreamPriority, Timing, Wanted, WorkloadType, submit,
};
use transload_profiler::{
    Direction, ProfilerOptions, StreamProfiler, StreamReport, TraceFormat, TraceOptions, Unit,
};

use crate::{Written, timing_all};

fn backend() -> Arc<dyn Backend> {
    CpuBackend::new().unwrap()
}

fn queue(backend: &Arc<dyn Backend>) -> QueueLease {
    backend.lease_queue(DeviceId::Cpu, StreamPriority::Normal, WorkloadType::Memory).unwrap()
}

fn copy(backend: &Arc<dyn Backend>, queue: &QueueLease, bytes: usize) {
    let allocate = || backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes).unwrap();
    let (src, dst) = (allocate(), allocate());
    submit(&**queue, &Operation::Copy { src: &src, dst: &dst }, Timing::Off).unwrap().wait().unwrap();
}

fn counts(report: &StreamReport) -> Vec<(OperationKind, u64, u64, u64)> {
    let kinds = report.kinds.iter();
    kinds.map(|kind| (kind.kind, kind.operations, kind.bytes, kind.running.count)).collect()
}

#[test]
fn disabled_profiler_records_nothing() {
    let backend = backend();
    let profiler = timing_all();
    profiler.attach(&backend).unwrap();
    let queue = queue(&backend);
    copy(&backend, &queue, 100);
    profiler.record_operation(&*queue, "unheard", None);
    drop(profiler.operation(&*queue, "unheard").unwrap());
    assert_eq!(profiler.get_stream_report(&*queue), None);
    profiler.enable().unwrap();
    copy(&backend, &queue, 200);
    profiler.disable();
    copy(&backend, &queue, 300);
    let report = profiler.get_stream_report(&*queue).unwrap();
    assert_eq!(counts(&report), [(OperationKind::Copy, 1, 200, 1)]);
}

#[test]
fn gaps_are_not_known_once_it_was_disabled_or_was_told_a_duration() {
    let backend = backend();
    // Of shorter operations only the first one is timed.
    let sampled = OperationSampling { all_from_bytes: 1000, one_in: 0 };
    let all_timed = |between: &dyn Fn(&StreamProfiler, &QueueLease)| {
        let profiler = StreamProfiler::new(ProfilerOptions::new().sampling(sampled));
        profiler.attach(&backend).unwrap();
        profiler.enable().unwrap();
        let queue = queue(&backend);
        copy(&backend, &queue, 1000);
        between(&profiler, &queue);
        copy(&backend, &queue, 1000);
        let [direction] = &profiler.get_comprehensive_report().directions[..] else { panic!() };
        assert_eq!(direction.timed_bytes, 2000, "{direction}");
        // A time that holds work which is not known is no gap.
        assert_eq!(direction.gaps.len(), usize::from(direction.all_timed), "{direction}");
        assert_eq!(direction.to_string().contains("longest gap"), direction.all_timed, "{direction}");
        direction.all_timed
    };
    assert!(all_timed(&|_, _| {}));
    assert!(!all_timed(&|profiler, queue| {
        profiler.disable();
        copy(&backend, queue, 1000);
        profiler.enable().unwrap();
    }));
    assert!(!all_timed(&|_, queue| copy(&backend, queue, 999)));
    let took = Some(Duration::from_millis(1));
    assert!(!all_timed(&|profiler, queue| profiler.record_memory_transfer(&**queue, 1000, took)));
}

#[test]
fn sampled_profiler_counts_what_it_does_not_time() {
    let backend = backend();
    let profiler = StreamProfiler::new(ProfilerOptions::new());
    profiler.attach(&backend).unwrap();
    profiler.enable().unwrap();
    let queue = queue(&backend);
    for _ in 0..2000 {
        copy(&backend, &queue, 1000);
    }
    copy(&backend, &queue, 4 << 20);
    let report = profiler.get_stream_report(&*queue).unwrap();
    let [kind] = &report.kinds[..] else { panic!("{report}") };
    assert_eq!((kind.operations, kind.bytes), (2001, 2_000_000 + (4 << 20)));
    let timed = kind.running.count;
    assert!((10..=80).contains(&timed), "one in 64 of 2000, and the large one: {timed}");
    assert_eq!(kind.timed_bytes, (timed - 1) * 1000 + (4 << 20));
    let all = profiler.get_comprehensive_report();
    assert_eq!((all.lost, all.outstanding), (0, 0));
    let share = all.timed_share.unwrap();
    assert!((share - kind.timed_bytes as f64 / kind.bytes as f64).abs() < 1e-9);
    assert!(
        all.to_string()
            .starts_with("timed: all from 4194304 bytes on, one in 64 below and the first of each stream; "),
        "{all}"
    );
}

#[test]
fn each_report_states_sampling_share_losses_and_the_error_of_the_clock() {
    let backend = backend();
    let sampling = OperationSampling { all_from_bytes: 1 << 20, one_in: 0 };
    let profiler = StreamProfiler::new(ProfilerOptions::new().sampling(sampling).capacity(64));
    profiler.attach(&backend).unwrap();
    profiler.enable().unwrap();
    let queue = queue(&backend);
    copy(&backend, &queue, 1 << 20);
    copy(&backend, &queue, 1 << 18);
    // These are counted before there is no room.
    drop(profiler.get_comprehensive_report());
    while profiler.get_stream_report(&*queue).unwrap().lost == 0 {
        (0..1000).for_each(|_| profiler.record_operation(&*queue, "many", None));
    }
    let (stream, all) = (profiler.get_stream_report(&*queue).unwrap(), profiler.get_comprehensive_report());
    assert_eq!((stream.sampling, stream.timed_share, stream.lost), (sampling, Some(0.8), all.lost));
    assert_eq!((all.sampling, all.timed_share), (sampling, Some(0.8)));
    let [clock] = &stream.clocks[..] else { panic!("{stream}") };
    assert!(clock.device == DeviceId::Cpu && clock.follows_host && all.clocks.contains(clock), "{stream}");
    let begin = "timed: all from 1048576 bytes on, one in 0 below and the first of each stream; 80.0 % of the bytes; ";
    for (report, lost) in [(stream.to_string(), " lost of all streams"), (all.to_string(), " lost")] {
        let lost = format!("{}{lost}\n", all.lost);
        assert!(report.starts_with(begin) && report.contains(&lost), "{report}");
        assert!(report.contains("\nclock of cpu: within "), "{report}");
    }
    #[cfg(feature = "serde")]
    for report in [serde_json::to_value(&stream).unwrap(), serde_json::to_value(&all).unwrap()] {
        assert_eq!((&report["timed_share"], &report["lost"]), (&0.8.into(), &all.lost.into()), "{report}");
        assert_eq!(report["sampling"]["all_from_bytes"], 1 << 20, "{report}");
        assert!(report["clocks"][0]["error_ns"].is_u64(), "{report}");
    }
}

#[test]
fn counts_go_on_after_a_pause() {
    let backend = backend();
    let profiler = timing_all();
    profiler.attach(&backend).unwrap();
    let queue = queue(&backend);
    for round in 1..=3 {
        profiler.enable().unwrap();
        copy(&backend, &queue, 10);
        profiler.disable();
        let report = profiler.get_stream_report(&*queue).unwrap();
        assert_eq!(counts(&report), [(OperationKind::Copy, round, 10 * round, round)]);
    }
}

/// Of queues that go on meanwhile, by the default sampling: what is enqueued while it is enabled counts, and nothing else.
#[test]
fn toggled_profiler_counts_what_is_enqueued_while_it_is_enabled() {
    let backend = backend();
    let profiler = StreamProfiler::new(ProfilerOptions::new());
    profiler.attach(&backend).unwrap();
    let queues = [(); 2].map(|()| queue(&backend));
    let (mut expected, mut bytes) = ([0, 0], [0, 0]);
    for round in 0..20 {
        let enqueue = |sizes: usize| {
            for (number, queue) in queues.iter().enumerate() {
                (0..10 + 7 * number).for_each(|at| copy(&backend, queue, sizes + at));
            }
        };
        enqueue(100);
        profiler.enable().unwrap();
        profiler.enable().unwrap();
        enqueue(1000 + round);
        profiler.disable();
        profiler.disable();
        for number in 0..2 {
            let count = 10 + 7 * number;
            expected[number] += count as u64;
            bytes[number] += (count * (1000 + round) + count * (count - 1) / 2) as u64;
        }
        enqueue(10);
    }
    for number in 0..2 {
        let report = profiler.get_stream_report(&*queues[number]).unwrap();
        let [kind] = &report.kinds[..] else { panic!("{report}") };
        assert_eq!((kind.operations, kind.bytes), (expected[number], bytes[number]), "{report}");
        assert!(kind.running.count >= 20 && kind.running.count < kind.operations, "{report}");
        assert_eq!((report.lost, report.unresolved), (0, 0));
    }
    assert_eq!(profiler.get_comprehensive_report().outstanding, 0);
}

#[test]
fn records_without_a_duration_have_none() {
    let backend = backend();
    let profiler = timing_all();
    profiler.enable().unwrap();
    let queue = queue(&backend);
    profiler.record_operation(&*queue, "step", None);
    profiler.record_kernel_launch(&*queue, "gemm", Some(Duration::from_micros(5)));
    profiler.record_memory_transfer(&*queue, 64, None);
    profiler.record_memory_transfer(&*queue, 100, Some(Duration::from_nanos(50)));
    let report = profiler.get_stream_report(&*queue).unwrap();
    let expected = [(OperationKind::Copy, 2, 164, 1), (OperationKind::Kernel, 2, 0, 1)];
    assert_eq!(counts(&report), expected);
    assert_eq!(report.kinds[1].running.total_ns, 5000);
    assert_eq!(report.kinds[0].bytes_per_second(), Some(2e9));
}

#[test]
fn guard_times_what_the_queue_did_meanwhile() {
    let backend = backend();
    let profiler = timing_all();
    profiler.attach(&backend).unwrap();
    profiler.enable().unwrap();
    let queue = queue(&backend);
    let guard = profiler.operation(&*queue, "batch").unwrap();
    for _ in 0..3 {
        copy(&backend, &queue, 8 << 20);
    }
    guard.end().unwrap();
    let report = profiler.get_stream_report(&*queue).unwrap();
    let [copies, guarded] = &report.kinds[..] else { panic!("{report}") };
    assert_eq!((guarded.kind, guarded.running.count), (OperationKind::Kernel, 1));
    assert!(guarded.running.total_ns >= copies.running.total_ns, "{report}");
}

#[test]
fn second_profiler_is_refused_and_the_first_goes_on() {
    let backend = backend();
    let (first, second) = (timing_all(), timing_all());
    for profiler in [&first, &second] {
        profiler.attach(&backend).unwrap();
    }
    first.enable().unwrap();
    assert_eq!(second.enable().unwrap_err().kind(), ErrorKind::Busy);
    assert!(!second.is_enabled());
    let queue = queue(&backend);
    copy(&backend, &queue, 10);
    assert_eq!(first.get_stream_report(&*queue).unwrap().operations(), 1);
    // At once, also while the first one's thread collects.
    first.add_gauge("slow", Unit::Count, || {
        (0..1000).for_each(|_| thread::yield_now());
        None
    });
    first.start_trace(io::sink(), TraceFormat::Chrome, TraceOptions::new()).unwrap();
    drop(first);
    second.enable().unwrap();
    copy(&backend, &queue, 10);
    assert_eq!(second.get_stream_report(&*queue).unwrap().operations(), 1);
}

#[cfg(feature = "serde")]
#[test]
fn reports_are_read_back_from_json() {
    let backend = backend();
    let profiler = timing_all();
    profiler.attach(&backend).unwrap();
    profiler.enable().unwrap();
    let queue = queue(&backend);
    copy(&backend, &queue, 4 << 20);
    profiler.record_operation(&*queue, "a \"name\"", Some(Duration::from_micros(3)));
    let (all, stream) = (profiler.get_comprehensive_report(), profiler.get_stream_report(&*queue).unwrap());
    let text = serde_json::to_string(&all).unwrap();
    let again: transload_profiler::ProfilerReport = serde_json::from_str(&text).unwrap();
    assert_eq!(again, all);
    let again: StreamReport = serde_json::from_str(&serde_json::to_string(&stream).unwrap()).unwrap();
    assert_eq!(again, stream);
}

#[test]
fn full_profiler_counts_what_it_lost() {
    let backend = backend();
    let options = ProfilerOptions::new().sampling(OperationSampling::ALL).capacity(64);
    let profiler = StreamProfiler::new(options);
    profiler.enable().unwrap();
    let queue = queue(&backend);
    // No thread takes them meanwhile only by chance, so there are far more than fit.
    for _ in 0..100_000 {
        profiler.record_operation(&*queue, "many", None);
    }
    let all = profiler.get_comprehensive_report();
    let kept = all.streams[0].operations();
    assert_eq!(kept + all.lost, 100_000);
    assert!(all.lost > 0 && kept >= 64, "{kept} kept");
    // A trace that begins now lacks none of them.
    profiler.start_trace(std::io::sink(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    assert_eq!(profiler.finish_trace().unwrap().records_lost, 0);
}

#[test]
fn spans_of_the_host_are_united_by_direction() {
    let backend = backend();
    let profiler = timing_all();
    profiler.attach(&backend).unwrap();
    profiler.enable().unwrap();
    let queue = queue(&backend);
    (0..4).for_each(|_| copy(&backend, &queue, 1 << 20));
    let all = profiler.get_comprehensive_report();
    let [direction] = &all.directions[..] else { panic!("{all}") };
    assert_eq!((direction.device, direction.direction), (DeviceId::Cpu, Direction::Within));
    assert_eq!((direction.timed_bytes, direction.all_timed), (4 << 20, true));
    assert_eq!(direction.busy_ns, direction.total_ns, "one queue does one thing at a time");
    let gaps: u64 = direction.gaps.iter().map(|gap| gap.length_ns).sum();
    assert_eq!(direction.busy_ns + gaps, direction.whole_ns);
}

#[test]
fn gap_begins_with_the_end_of_an_operation_by_the_hosts_clock() {
    let backend = backend();
    // The host's clock counts from before the profiler was made.
    let begun = Instant::now();
    drop(Stamp::of_host(begun));
    while begun.elapsed() < Duration::from_millis(100) {
        std::hint::spin_loop();
    }
    let made = Instant::now();
    let profiler = timing_all();
    let latest_origin = made.elapsed();
    profiler.attach(&backend).unwrap();
    profiler.enable().unwrap();
    let queue = queue(&backend);
    let before = made.elapsed();
    copy(&backend, &queue, 100);
    let after = made.elapsed();
    copy(&backend, &queue, 100);
    let all = profiler.get_comprehensive_report();
    let [direction] = &all.directions[..] else { panic!("{all}") };
    let [gap] = &direction.gaps[..] else { panic!("{all}") };
    let begin = Duration::from_nanos(gap.begin_ns.try_into().unwrap());
    assert!(before - latest_origin <= begin && begin <= after, "{begin:?}, after {before:?} to {after:?}");
}

#[test]
fn trace_has_a_row_for_the_queue() {
    let backend = backend();
    let profiler = timing_all();
    profiler.attach(&backend).unwrap();
    profiler.enable().unwrap();
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Chrome, TraceOptions::new()).unwrap();
    let again = profiler.start_trace(Vec::new(), TraceFormat::Chrome, TraceOptions::new());
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Busy);
    let queue = queue(&backend);
    copy(&backend, &queue, 4096);
    profiler.record_operation(&*queue, "without a time, not drawn", None);
    drop(profiler.operation(&*queue, "a \"named\" one").unwrap());
    let summary = profiler.finish_trace().unwrap();
    assert_eq!(profiler.finish_trace().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let mut names: Vec<_> = written.slices().iter().map(|slice| slice["name"].clone()).collect();
    names.sort_by_key(ToString::to_string);
    assert_eq!(names, ["a \"named\" one", "copy"]);
    assert_eq!(summary.slices, 2);
}

/// The file of a trace, whose writing is held up from a moment on.
struct Slow {
    is_held: Arc<AtomicBool>,
    entered: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
    has_waited: Arc<AtomicBool>,
}

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_held.swap(false, Ordering::Relaxed) {
            self.entered.send(()).unwrap();
            // Not for ever, so that the test fails and does not hang.
            let outcome = self.go_on.recv_timeout(Duration::from_secs(60));
            self.has_waited.store(outcome.is_err(), Ordering::Relaxed);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn slow_trace_does_not_hold_up_who_records_an_operation() {
    let backend = backend();
    let profiler = timing_all();
    profiler.attach(&backend).unwrap();
    profiler.enable().unwrap();
    let queue = queue(&backend);
    let [is_held, has_waited] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let ((entered, has_entered), (release, go_on)) = (mpsc::channel(), mpsc::channel());
    let out = Slow { is_held: Arc::clone(&is_held), entered, go_on, has_waited: Arc::clone(&has_waited) };
    profiler.start_trace(out, TraceFormat::Chrome, TraceOptions::new()).unwrap();
    is_held.store(true, Ordering::Relaxed);
    while has_entered.try_recv().is_err() {
        profiler.operation(&*queue, "written").unwrap().end().unwrap();
    }
    profiler.operation(&*queue, "meanwhile").unwrap().end().unwrap();
    assert!(!has_waited.load(Ordering::Relaxed), "an operation waited for the trace");
    release.send(()).unwrap();
    profiler.finish_trace().unwrap();
}

/// The file of a trace that panics from a moment on.
struct Panicking(Arc<AtomicBool>);

impl Write for Panicking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        assert!(!self.0.load(Ordering::Relaxed), "planted");
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn panic_of_a_gauge_or_a_trace_ends_that_one_only() {
    let backend = backend();
    let profiler = timing_all();
    profiler.attach(&backend).unwrap();
    profiler.enable().unwrap();
    let queue = queue(&backend);
    let calls = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&calls);
    profiler.add_gauge("panics", Unit::Count, move || {
        theirs.fetch_add(1, Ordering::Relaxed);
        panic!("planted")
    });
    let panics = Arc::new(AtomicBool::new(false));
    let out = Panicking(Arc::clone(&panics));
    profiler.start_trace(out, TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    copy(&backend, &queue, 1000);
    drop(profiler.get_comprehensive_report());
    panics.store(true, Ordering::Relaxed);
    copy(&backend, &queue, 1000);
    let report = profiler.get_stream_report(&*queue).unwrap();
    assert_eq!(counts(&report), [(OperationKind::Copy, 2, 2000, 2)]);
    assert_eq!(profiler.finish_trace().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    // The profiler's thread still writes.
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Chrome, TraceOptions::new()).unwrap();
    copy(&backend, &queue, 1000);
    while !written.text().contains("copy") {
        thread::yield_now();
    }
}

#[test]
fn sampling_of_transfers_begins_anywhere_in_each_thread() {
    let profiler = StreamProfiler::new(ProfilerOptions::new());
    profiler.enable().unwrap();
    let observer = profiler.observer();
    let is_taken = || thread::scope(|scope| scope.spawn(|| observer.wants(1)).join().unwrap());
    let taken = (0..640).filter(|_| is_taken() == Wanted::Times).count();
    assert!((1..=40).contains(&taken), "10 of 640 threads are expected to begin with one: {taken}");
    assert_eq!(observer.wants(4 << 20), Wanted::Times);
}

#[test]
fn backend_that_is_attached_again_is_one() {
    let backend: Arc<dyn Backend> = CpuBackend::new().unwrap();
    let profiler = timing_all();
    // As for each of its devices.
    profiler.attach(&backend).unwrap();
    profiler.attach(&backend).unwrap();
    profiler.enable().unwrap();
    profiler.attach(&backend).unwrap();
    profiler.disable();
    profiler.enable().unwrap();
}
