//! Traces and reports next to the truth. The software driver knows at which of the host's instants its streams reached each event, by a clock that runs at an offset
//! and a rate of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::Value;
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    Backend, DeviceId, FloatType, MemoryKind, Operation, OperationKind, Pattern, RawBuffer, Recording,
    StreamPriority, Timing, TransferMethod, submit,
};
use transload_cuda_sim::{SimDevice, harness};
use transload_profiler::{TraceFormat, TraceOptions};
use transload_streams::CudaStream;
use transload_transfer::CrossBackendTransferManager;

use crate::{
    Written,
    cuda::{DRIFT, OFFSET, setup},
    timing_all,
};

const ROUNDS: usize = 8;
const STREAMS: usize = 2;
const BYTES: usize = 1 << 20;
const PIECES: usize = 16;

/// Buffers that one stream works on.
struct Work {
    here: RawBuffer,
    there: RawBuffer,
    large: [RawBuffer; 2],
    pieces: Vec<(RawBuffer, RawBuffer)>,
    /// The destination of casts to half as many bytes.
    half: RawBuffer,
    unified: RawBuffer,
    /// A copy from `here` to `there`.
    recording: Arc<dyn Recording>,
}

impl Work {
    fn new(backend: &CudaBackend, device: DeviceId) -> Self {
        let allocate = |kind, bytes| backend.allocate(device, kind, bytes).unwrap();
        let (here, there) = (allocate(MemoryKind::Pinned, BYTES), allocate(MemoryKind::Device, BYTES));
        let large = [MemoryKind::Pinned, MemoryKind::Device].map(|kind| allocate(kind, 8 * BYTES));
        let part = |of: &RawBuffer, at: usize| of.slice(at * 4096..(at + 1) * 4096).unwrap();
        let pieces = (0..PIECES).map(|at| (part(&here, at), part(&there, PIECES - 1 - at))).collect();
        here.write().unwrap().fill(1);
        large[0].write().unwrap().fill(2);
        let half = allocate(MemoryKind::Device, BYTES / 2);
        let unified = allocate(MemoryKind::Unified, BYTES);
        unified.write().unwrap().fill(3);
        let copy = Operation::Copy { src: &here, dst: &there };
        let recording = backend.record(device, StreamPriority::Normal, &[copy]).unwrap();
        backend.prepare_in_place(device).unwrap();
        Self { here, there, large, pieces, half, unified, recording }
    }

    /// Operations, and what is drawn of them: name, bytes, pieces.
    fn operations(&self) -> [(Operation<'_>, (&'static str, u64, u64)); 12] {
        let Self { here, there, large, pieces, half, unified, recording } = self;
        let device = there.place().device;
        let bytes = BYTES as u64;
        [
            // While it runs, the others are enqueued.
            (Operation::Copy { src: &large[0], dst: &large[1] }, ("copy", 8 * bytes, 1)),
            (Operation::Copy { src: here, dst: there }, ("copy", bytes, 1)),
            (Operation::Fill { dst: there, pattern: Pattern::U8(3) }, ("fill", bytes, 1)),
            (Operation::CopyBatch { pairs: pieces }, ("copy batch", 4096 * PIECES as u64, PIECES as u64)),
            (Operation::Copy { src: &large[1], dst: &large[0] }, ("copy", 8 * bytes, 1)),
            (Operation::Copy { src: there, dst: here }, ("copy", bytes, 1)),
            (Operation::CopyInPlace { src: here, dst: there }, ("copy kernel", bytes, 1)),
            (
                Operation::CopyBatchInPlace { pairs: pieces },
                ("copy kernel", 4096 * PIECES as u64, PIECES as u64),
            ),
            (
                Operation::Cast { src: there, from: FloatType::F32, dst: half, to: FloatType::F16 },
                ("cast", bytes / 2, 1),
            ),
            (Operation::Prefetch { buffer: unified, to: device }, ("prefetch", bytes, 1)),
            (Operation::Prefetch { buffer: unified, to: DeviceId::Cpu }, ("prefetch", bytes, 1)),
            (Operation::Replay { recorded: &**recording }, ("replay", 0, 1)),
        ]
    }
}

/// A slice; nanoseconds since the profiler was made.
#[derive(Debug)]
struct Drawn {
    begin: i128,
    end: i128,
    error: i128,
    what: (String, u64, u64),
}

/// Returns the slices by the names of their rows, in order.
fn drawn(text: &str) -> BTreeMap<String, Vec<Drawn>> {
    let events: Vec<Value> = serde_json::from_str(text).unwrap();
    let named = events.iter().filter(|event| event["name"] == "thread_name");
    let rows: BTreeMap<_, _> =
        named.map(|event| (event["tid"].to_string(), event["args"]["name"].as_str().unwrap())).collect();
    let nanoseconds = |value: &Value| (value.as_f64().unwrap() * 1e3).round() as i128;
    let mut drawn = BTreeMap::<_, Vec<_>>::new();
    for slice in events.iter().filter(|event| event["ph"] == "X") {
        let (begin, arguments) = (nanoseconds(&slice["ts"]), &slice["args"]);
        let number = |name: &str| arguments[name].as_u64().unwrap_or(0);
        let of_row = drawn.entry(rows[&slice["tid"].to_string()].to_owned()).or_default();
        of_row.push(Drawn {
            begin,
            end: begin + nanoseconds(&slice["dur"]),
            error: number("clock_error_ns").into(),
            what: (slice["name"].as_str().unwrap().to_owned(), number("bytes"), number("pieces")),
        });
    }
    drawn.values_mut().for_each(|row| row.sort_by_key(|slice| slice.begin));
    drawn
}

/// Returns the number by which the software driver knows the stream that the last fill ran on.
fn last_filled(sim: &SimDevice) -> u32 {
    let executed = sim.executed();
    executed.iter().rfind(|(_, name)| name.starts_with("cuMemset")).unwrap().0
}

/// Returns when a stream's timed operations began and ended, by the host's clock.
fn true_spans(sim: &SimDevice, stream: u32) -> Vec<[Instant; 2]> {
    let times: Vec<_> = sim.event_times().into_iter().filter(|(number, _)| *number == stream).collect();
    let truth = |(_, at): (u32, Duration)| sim.host_instant(at).unwrap();
    times.chunks_exact(2).map(|pair| [truth(pair[0]), truth(pair[1])]).collect()
}

/// The planted offset of the device's clock and its drift are in no slice, but for the error that the slice states.
#[test]
fn slices_lie_where_their_operations_truly_ran() {
    let Some(test) = harness::device_with(|device| device.paced(OFFSET, DRIFT)) else { return };
    let (sim, device) = (*test.sim().unwrap(), DeviceId::Cuda(test.ordinal()));
    let _checked = test.end_check();
    let backend = CudaBackend::open(&CudaBackendConfig::default().with_devices([sim.ordinal()])).unwrap();
    // The profiler's time begins between the two.
    let earliest = Instant::now();
    let profiler = timing_all();
    let latest = Instant::now();
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    let streams: Vec<_> =
        (0..STREAMS).map(|_| CudaStream::new(backend.device(sim.ordinal()).unwrap()).unwrap()).collect();
    let work: Vec<_> = (0..STREAMS).map(|_| Work::new(&backend, device)).collect();
    let numbers: Vec<_> = streams
        .iter()
        .zip(&work)
        .map(|(stream, work)| {
            let fill = Operation::Fill { dst: &work.there, pattern: Pattern::U8(0) };
            submit(stream, &fill, Timing::Off).unwrap().wait().unwrap();
            last_filled(&sim)
        })
        .collect();
    profiler.enable().unwrap();
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Chrome, TraceOptions::new()).unwrap();
    let (mut expected, mut calls) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for index in 0..work[0].operations().len() {
            for (stream, work) in streams.iter().zip(&work) {
                let (operation, what) = &work.operations()[index];
                let before = Instant::now();
                submit(stream, operation, Timing::Off).unwrap();
                calls.push((before, Instant::now(), what.0));
                expected.extend((std::ptr::eq(stream, &raw const streams[0])).then_some(*what));
            }
        }
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        // So that the drift is far larger than the errors.
        while earliest.elapsed() < Duration::from_millis(40) * (round as u32 + 1) {
            std::hint::spin_loop();
        }
    }
    let summary = profiler.finish_trace().unwrap();
    assert_eq!((summary.records_lost, summary.unfinished), (0, 0), "{summary}");
    let mut drawn = drawn(&written.text());

    let since = |instant: Instant| instant.duration_since(earliest).as_nanos() as i128;
    // What the profiler's beginning is after `earliest`, as each slice tells it.
    let (mut least, mut most, mut errors) = (0, since(latest), Vec::new());
    for (number, stream) in numbers.iter().zip(&streams) {
        let row = format!("stream {} (", stream.id());
        // Slices that overlap have several rows of the name.
        let of_stream = drawn.extract_if(.., |name, _| name.starts_with(&row));
        let mut slices: Vec<_> = of_stream.flat_map(|(_, slices)| slices).collect();
        slices.sort_by_key(|slice| slice.begin);
        let whats = slices.iter().map(|slice| (&slice.what.0[..], slice.what.1, slice.what.2));
        assert_eq!(whats.collect::<Vec<_>>(), expected, "{row}");
        let truth = true_spans(&sim, *number);
        assert_eq!(slices.len(), truth.len(), "{row}");
        for (slice, [begin, end]) in slices.iter().zip(truth) {
            errors.push(slice.error);
            for (at, truth) in [(slice.begin, begin), (slice.end, end)] {
                least = least.max(since(truth) - at - slice.error);
                most = most.min(since(truth) - at + slice.error);
                assert!(least <= most, "{row}: {slice:?}, in truth from {begin:?} to {end:?}");
            }
        }
    }
    // A clock that claims nothing would always be right. What is stated is microseconds, unless other programs have the processors.
    errors.sort_unstable();
    assert!(errors[errors.len() / 2] < 1_000_000, "{errors:?}");
    // All others are calls of this thread.
    let [(_, slices)] = &drawn.iter().collect::<Vec<_>>()[..] else { panic!("{:?}", drawn.keys()) };
    assert_eq!(slices.len(), calls.len());
    for (slice, (before, after, name)) in slices.iter().zip(calls) {
        assert_eq!(slice.what.0, name);
        assert!(since(before) - most <= slice.begin && slice.end <= since(after) - least, "{slice:?}");
    }
}

#[test]
fn list_is_drawn_as_one_operation_with_its_pieces_and_bytes() {
    let (test, backend, profiler) = setup();
    let device = DeviceId::Cuda(test.ordinal());
    let manager = CrossBackendTransferManager::builder().observer(profiler.observer()).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let work = Work::new(&backend, device);
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Chrome, TraceOptions::new()).unwrap();
    manager.copy_many(&work.pieces).wait().unwrap();
    profiler.finish_trace().unwrap();
    let drawn = drawn(&written.text());
    let (bytes, pieces) = (4096 * PIECES as u64, PIECES as u64);
    let of_streams = drawn.iter().filter(|(row, _)| row.starts_with("stream ")).flat_map(|(_, it)| it);
    let operations: Vec<_> = of_streams.map(|slice| (slice.what.1, slice.what.2)).collect();
    assert_eq!(operations, [(bytes, pieces)], "{drawn:?}");
    let submissions = drawn.values().flatten().filter(|slice| slice.what.0 == "submit");
    assert!(submissions.map(|slice| slice.what.1).eq([bytes]), "{drawn:?}");
    drop(work);
    manager.drain().unwrap();
}

/// A word that a stream waits for, in mapped memory.
fn word(of: &RawBuffer) -> &AtomicU32 {
    // SAFETY: the buffer has 4 aligned bytes and outlives the reference; all access to them is atomic.
    unsafe { of.host_address().unwrap().cast::<AtomicU32>().as_ref() }
}

#[test]
fn time_before_a_stream_reaches_an_operation_is_waiting_and_not_running() {
    let (test, backend, profiler) = setup();
    let device = DeviceId::Cuda(test.ordinal());
    let manager = CrossBackendTransferManager::builder().observer(profiler.observer()).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let work = Work::new(&backend, device);
    let gate = backend.allocate(device, MemoryKind::Mapped, 4).unwrap();
    word(&gate).store(0, Ordering::Relaxed);
    let held = CudaStream::new(backend.device(test.ordinal()).unwrap()).unwrap();
    // SAFETY: the word lives until the stream has passed; this thread writes it below.
    if let Err(error) = unsafe { held.driver().wait_word(gate.device_address().unwrap(), 1) } {
        assert!(harness::is_real(), "{error}");
        println!("skipped: {error}");
        return;
    }
    let (fence, begun) = (held.fence().unwrap(), Instant::now());
    let copy = manager.copy(&work.here, &work.there).after(&fence).submit();
    let submitted = Instant::now();
    while submitted.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    let waited = submitted.elapsed().as_nanos() as u64;
    word(&gate).store(1, Ordering::Release);
    copy.wait().unwrap();
    let whole = begun.elapsed().as_nanos() as u64;
    let all = profiler.get_comprehensive_report();
    let kinds = all.streams.iter().flat_map(|stream| &stream.kinds);
    let [kind] = &kinds.filter(|kind| kind.kind == OperationKind::Copy).collect::<Vec<_>>()[..] else {
        panic!("{all}")
    };
    let [path] = &all.paths[..] else { panic!("{all}") };
    let error = all.clocks.iter().map(|clock| clock.error_ns).max().unwrap();
    assert_eq!((path.timed, path.timed_bytes), (1, BYTES as u64), "{all}");
    for (waiting, running) in [(kind.waiting, kind.running), (path.waiting, path.running)] {
        assert_eq!((waiting.count, running.count), (1, 1), "{all}");
        assert!(waiting.total_ns + error >= waited, "{waited} ns: {all}");
        assert!(waiting.total_ns + running.total_ns <= whole + 2 * error, "{whole} ns: {all}");
        // Two digits are kept.
        assert!(
            waiting.percentiles.unwrap().p50_ns as f64 >= 0.98 * waited.saturating_sub(error) as f64,
            "{all}"
        );
    }
    drop((work, gate, held, fence));
    manager.drain().unwrap();
}

/// Each slice of a stream is compared with the one stream of the software driver whose events it can be.
#[test]
fn staged_transfers_and_their_chunks_lie_where_they_truly_ran() {
    const TRANSFERS: usize = 6;
    let Some(test) = harness::device_with(|device| device.paced(OFFSET, DRIFT)) else { return };
    let (sim, device) = (*test.sim().unwrap(), DeviceId::Cuda(test.ordinal()));
    let _checked = test.end_check();
    let backend = CudaBackend::open(&CudaBackendConfig::default().with_devices([sim.ordinal()])).unwrap();
    let earliest = Instant::now();
    let profiler = timing_all();
    let latest = Instant::now();
    profiler.attach(&(Arc::clone(&backend) as _)).unwrap();
    let manager = CrossBackendTransferManager::builder().observer(profiler.observer()).build();
    manager.register_backend(CpuBackend::new().unwrap()).unwrap();
    manager.register_backend(Arc::clone(&backend) as _).unwrap();
    let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 6 * BYTES).unwrap();
    let there = manager.allocate(device, MemoryKind::Device, 6 * BYTES).unwrap();
    host.write().unwrap().fill(1);
    profiler.enable().unwrap();
    let written = Written::default();
    profiler.start_trace(written.clone(), TraceFormat::Chrome, TraceOptions::new()).unwrap();
    let mut calls = Vec::new();
    for round in 0..TRANSFERS {
        let (src, dst) = if round % 2 == 0 { (&host, &there) } else { (&there, &host) };
        let before = Instant::now();
        let report = manager.copy(src, dst).method(TransferMethod::HostStaged).wait().unwrap();
        assert!(report.chunks > 1, "{report:?}");
        calls.push((before, Instant::now()));
    }
    let summary = profiler.finish_trace().unwrap();
    assert_eq!((summary.records_lost, summary.unfinished), (0, 0), "{summary}");
    let drawn = drawn(&written.text());

    let since = |instant: Instant| instant.duration_since(earliest).as_nanos() as i128;
    let (mut least, mut most) = (0, since(latest));
    let mut streams = BTreeMap::<_, Vec<&Drawn>>::new();
    for (name, slices) in drawn.iter().filter(|(name, _)| name.starts_with("stream ")) {
        // Slices that overlap have several rows of the name.
        streams.entry(name.split(" (").next().unwrap()).or_default().extend(slices);
    }
    let numbers: BTreeSet<_> = sim.event_times().into_iter().map(|(number, _)| number).collect();
    for (name, slices) in &streams {
        // Several threads submit to a stream: the begin of one's copy may come before that of another's, and its end after it.
        let ends = slices.iter().flat_map(|slice| [(slice.begin, slice.error), (slice.end, slice.error)]);
        let mut ends: Vec<_> = ends.collect();
        ends.sort_unstable();
        let fits = numbers.iter().filter_map(|number| {
            let mut truth: Vec<_> = true_spans(&sim, *number).into_iter().flatten().collect();
            truth.sort_unstable();
            let offsets = ends.iter().zip(&truth).map(|((at, error), truth)| (since(*truth) - at, *error));
            let (from, to) = offsets.fold((least, most), |(from, to), (offset, error)| {
                (from.max(offset - error), to.min(offset + error))
            });
            (ends.len() == truth.len() && from <= to).then_some((from, to))
        });
        let [(from, to)] = fits.collect::<Vec<_>>()[..] else { panic!("{name}: {slices:?}") };
        (least, most) = (from, to);
    }
    let mut whole: Vec<_> = drawn.values().flatten().filter(|slice| slice.what.0 == "HostStaged").collect();
    whole.sort_by_key(|slice| slice.begin);
    assert_eq!(whole.len(), TRANSFERS, "{:?}", drawn.keys());
    for (slice, (before, after)) in whole.into_iter().zip(calls) {
        assert!(since(before) - most <= slice.begin && slice.end <= since(after) - least, "{slice:?}");
        let is_in = |chunk: &&&Drawn| {
            slice.begin - chunk.error <= chunk.begin && chunk.end <= slice.end + chunk.error
        };
        // It encloses all of its chunks and no other's.
        let chunks = streams.values().flatten().filter(is_in);
        assert_eq!(chunks.map(|chunk| chunk.what.1).sum::<u64>(), 6 * BYTES as u64, "{slice:?}");
    }
    drop((host, there));
    manager.drain().unwrap();
}
