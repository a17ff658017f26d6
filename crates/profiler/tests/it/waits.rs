//! Waits of streams for each other: counted, timed, and drawn with what they waited for.

use std::{sync::Arc, time::Duration};

use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    Backend, DeviceId, Fence, MemoryKind, Operation, OperationKind, OperationSampling, Queue, RawBuffer,
    Timing, submit,
};
use transload_cuda_sim::harness;
use transload_profiler::{
    AdviceKind, Direction, KindReport, ProfilerOptions, StreamProfiler, StreamReport, TraceFormat,
    TraceOptions,
};
use transload_streams::CudaStream;

use crate::{
    Written,
    cuda::{setup, setup_with},
    packets::{self, Event},
};

const BYTES: usize = 64 << 20;

/// Two streams, of which the second one uses what the first one writes.
struct Dependent {
    streams: [CudaStream; 2],
    from: RawBuffer,
    there: RawBuffer,
    back: RawBuffer,
}

impl Dependent {
    fn new(backend: &Arc<CudaBackend>, ordinal: u32) -> Self {
        let device = backend.device(ordinal).unwrap();
        let streams = [(); 2].map(|()| CudaStream::new(device).unwrap());
        let allocate = |kind| backend.allocate(DeviceId::Cuda(ordinal), kind, BYTES).unwrap();
        let (from, there, back) =
            (allocate(MemoryKind::Pinned), allocate(MemoryKind::Device), allocate(MemoryKind::Pinned));
        from.write().unwrap().fill(7);
        Self { streams, from, there, back }
    }

    /// Returns the fence of the second one's copy.
    fn submit(&self) -> Fence {
        let up = Operation::Copy { src: &self.from, dst: &self.there };
        let _first = submit(&self.streams[0], &up, Timing::Off).unwrap();
        self.submit_second()
    }

    fn submit_second(&self) -> Fence {
        submit(&self.streams[1], &Operation::Copy { src: &self.there, dst: &self.back }, Timing::Off).unwrap()
    }

    fn run(&self) {
        self.submit().wait().unwrap();
        assert!(self.back.read().unwrap().iter().all(|byte| *byte == 7));
    }
}

fn waits(report: &StreamReport) -> Option<&KindReport> {
    report.kinds.iter().find(|kind| kind.kind == OperationKind::Wait)
}

#[test]
fn wait_is_drawn_with_the_operation_that_it_waited_for() {
    let (test, backend, profiler) = setup();
    let dependent = Dependent::new(&backend, test.ordinal());
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Perfetto, TraceOptions::new()).unwrap();
    dependent.run();
    let [one, two] = &dependent.streams;
    let [first, second] = [one, two].map(|stream| profiler.get_stream_report(stream).unwrap());
    profiler.finish_trace().unwrap();
    assert!(waits(&first).is_none(), "{first}");
    let waited = waits(&second).unwrap();
    assert_eq!((waited.operations, waited.bytes, waited.running.count, second.operations()), (1, 0, 1, 1));
    if test.is_simulated() {
        // Until the end of the first copy.
        assert!(waited.running.total_ns > 0, "{second}");
    }
    let directions: Vec<_> =
        profiler.get_comprehensive_report().directions.iter().map(|it| it.direction).collect();
    assert_eq!(directions, [Direction::ToDevice, Direction::FromDevice], "a wait is no work");

    let trace = packets::read(&written.0.lock()).unwrap();
    let rows = trace.rows();
    let name = |queue: &CudaStream| format!("stream {}", queue.timeline().id());
    let begun = |queue: &CudaStream, what: &str| {
        let mut begins = trace.events().filter(|(_, event)| {
            let row = &rows[&event.row].name;
            event.kind == 1 && event.name.as_deref() == Some(what) && row.starts_with(&name(queue))
        });
        begins.next().unwrap()
    };
    let ((_, copied), (_, wait)) = (begun(one, "copy"), begun(two, "wait"));
    let argument = |event: &Event, name: &str| {
        event.arguments.iter().find(|argument| argument.0 == name).map(|argument| argument.1.clone())
    };
    assert_eq!(argument(wait, "waits_for"), Some(name(one)));
    assert_eq!(argument(copied, "waits_for"), None);
    assert!(!wait.flows.is_empty() && copied.flows == wait.flows, "{copied:?}, {wait:?}");
    let drawn = trace.drawn();
    let span = |queue: &CudaStream, what: &str| {
        let slice = drawn.iter().find(|it| it.name == what && it.row.starts_with(&name(queue))).unwrap();
        (slice.begin, slice.end)
    };
    let error: u64 = argument(wait, "clock_error_ns").unwrap().parse().unwrap();
    let (copied, waited, after) = (span(one, "copy"), span(two, "wait"), span(two, "copy"));
    assert!(waited.1 + 2 * error >= copied.1, "{copied:?}, {waited:?}, {error}");
    assert!(after.0 >= waited.1, "{waited:?}, {after:?}");
}

#[test]
fn waits_are_counted_and_leave_gaps_known_without_times() {
    let test = harness::device().end_check();
    let config = CudaBackendConfig::default().with_devices([test.ordinal()]);
    let backend = CudaBackend::open(&config).unwrap();
    // All operations with bytes.
    let sampling = OperationSampling { all_from_bytes: 1, one_in: 0 };
    let profiler = StreamProfiler::new(ProfilerOptions::new().sampling(sampling));
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    let dependent = Dependent::new(&backend, test.ordinal());
    dependent.run();
    profiler.enable().unwrap();
    (0..3).for_each(|_| dependent.run());
    profiler.disable();
    dependent.run();
    let report = profiler.get_stream_report(&dependent.streams[1]).unwrap();
    let waited = waits(&report).unwrap();
    assert_eq!((waited.operations, waited.running.count, report.operations()), (3, 0, 3), "{report}");
    assert!(profiler.get_comprehensive_report().directions.iter().all(|it| it.all_timed));
}

/// Returns whether it is told of copies up, which were queued behind a kernel, and of two copies down, which waited for these, that their engine was idle. With
/// `behind_own`, a kernel of their own stream comes between the two copies down. `None` if engines cannot be recorded.
fn idle_links(sampling: OperationSampling, behind_own: bool) -> Option<[bool; 2]> {
    let (test, backend, profiler) =
        setup_with(StreamProfiler::new(ProfilerOptions::new().sampling(sampling)));
    profiler.record_engines().inspect_err(|error| println!("skipped: {error}")).ok()?;
    let dependent = Dependent::new(&backend, test.ordinal());
    let [one, two] = &dependent.streams;
    one.occupy(Duration::from_millis(30)).unwrap();
    dependent.submit();
    if behind_own {
        two.occupy(Duration::from_millis(30)).unwrap();
    }
    // The stream waits already, so it is not made to wait again.
    dependent.submit_second().wait().unwrap();
    let report = profiler.get_comprehensive_report();
    let links = report.advice.iter().filter(|it| matches!(it.kind, AdviceKind::UseIdleLink { .. }));
    let sources: Vec<_> = links.filter_map(|it| it.path).map(|path| path.src.device.is_cpu()).collect();
    Some([true, false].map(|is_up| sources.contains(&is_up)))
}

#[test]
fn copies_that_wait_for_another_stream_are_not_queued_meanwhile() {
    // This thread may be held up for longer than the kernel lasts, so that nothing is queued behind it.
    let is_told = (0..20).any(|_| {
        idle_links(OperationSampling::ALL, false).is_none_or(|[is_up, is_down]| {
            assert!(!is_down, "they waited for the other stream");
            is_up
        })
    });
    assert!(is_told);
    // After the wait the second one is queued behind a kernel of its own stream.
    let is_told =
        (0..20).any(|_| idle_links(OperationSampling::ALL, true).is_none_or(|[_, is_down]| is_down));
    assert!(is_told);
    // Of waits that are not timed it is not known for which copies they were.
    let with_bytes = OperationSampling { all_from_bytes: 1, one_in: 0 };
    assert!(idle_links(with_bytes, false).is_none_or(|told| told == [false; 2]));
}
