//! What profiling costs small copies, how far instants of the device are off on the host's clock, and how fast traces are written.

use std::{
    sync::{Arc, atomic::AtomicU32, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{
    ClockAnchor, ErrorKind, MemoryKind, Operation, OperationKind, OperationSampling, Queue as _, RawBuffer,
    StreamPriority, Timing, WorkloadType, submit,
};
use transload_cuda_sys::{Driver, check, cust::sys::CUstream, ffi};
use transload_profiler::{
    Argument, Flow, ProfilerOptions, Slice, StreamProfiler, TraceFormat, TraceOptions, TraceWriter,
};
use transload_streams::CudaStream;
use transload_transfer::CrossBackendTransferManager;

use super::{Library, each, timed};
use crate::{
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    cuda,
    memory::Memory,
    row::{Goal, Row, Summary},
};

const BYTES: usize = 4 << 10;
/// Copies and lists of one run, so that sampled ones are among them. The machine is faster and slower for some ten milliseconds at a time: runs are
/// far shorter, and many.
const COPIES: usize = 256;
const LISTS_AT_ONCE: usize = 16;
const RUNS: usize = 200;
/// Of eight threads, which are started for each run.
const RUNS_OF_THREADS: usize = 60;
const RUNS_OF_LISTS: usize = 60;
const PIECES: usize = 1000;
const THREADS: usize = 8;
/// Goals: times with the profiler over those without.
const SAMPLED: f64 = 1.05;
const LISTS: f64 = 1.02;
/// Goal: the share of event spans of queued copies that are within 2 µs and 1 % of the exact ones.
const AGREEING: f64 = 0.99;
/// Goal: microseconds between the clocks.
const CLOCKS: f64 = 2.0;
/// Goal: slices of a trace that are written a second.
const SLICES: f64 = 1e6;

/// Name and description of a variant, and what its profiler samples if that is enabled.
type Sampled = (&'static str, &'static str, Option<OperationSampling>);
/// The variants of a comparison take turns while all its profilers are enabled: what a profiler's thread takes of the driver now and then slows all of them
/// alike, and is in no row. Where every operation is timed it is at the driver all the time, so that is compared by itself.
const COMPARED: [&[Sampled]; 2] = [
    &[
        ("disabled", "attached, and disabled again", None),
        (
            "default",
            "all from 4 MiB and one in 64 below",
            Some(OperationSampling { all_from_bytes: 4 << 20, one_in: 64 }),
        ),
    ],
    &[("all", "every operation", Some(OperationSampling::ALL))],
];

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, how) in
        [("wait", How::Wait), ("submit", How::Submit), ("enqueue", How::Enqueue), ("copy-many", How::Many)]
    {
        for (prefix, threads) in [("", 1), ("threads-8/", THREADS)] {
            for sampled in COMPARED {
                rows.extend(overhead(fixture, &format!("{prefix}{name}"), (how, threads), sampled)?);
            }
        }
    }
    rows.extend(clocks(fixture)?);
    rows.extend(engines(fixture)?);
    for (name, format) in [("perfetto", TraceFormat::Perfetto), ("chrome", TraceFormat::Chrome)] {
        rows.push(trace(fixture, name, format)?);
    }
    Ok(rows)
}

/// A trace that goes nowhere. Each slice has two arguments and a flow, like that of a copy.
fn trace(fixture: &Fixture<'_>, name: &str, format: TraceFormat) -> Result<Row> {
    let slices = fixture.amount(1_000_000);
    let arguments = [("bytes", Argument::U64(4096)), ("method", Argument::Text("DirectCopy"))];
    let mut rates = Vec::new();
    for _ in 0..fixture.few_repetitions(10) {
        let mut trace = TraceWriter::new(std::io::sink(), format, TraceOptions::new())?;
        let stream = trace.track(None, "stream")?;
        let begun = Instant::now();
        for number in 0..slices as u64 {
            let (begin, flow) = (1_000_000_000_000 + number * 1000, Some(Flow::Step(number)));
            let slice = Slice { name: "copy", begin, end: begin + 900, flow, arguments: &arguments };
            trace.slice(stream, &slice)?;
        }
        let summary = trace.finish()?;
        rates.push(1e9 / each(begun, slices));
        ensure!(summary.slices == slices as u64, "slices are missing: {summary}");
    }
    let what = format!("slices of a trace with two arguments and a flow each, in the format {name}");
    let row =
        fixture.row(&format!("trace/{name}/write"), &what, "TraceWriter", "slices/s", Summary::of(&rates));
    Ok(row.with_goal(Some(Goal::AtLeast(SLICES))))
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Wait,
    Submit,
    /// On a stream, without the transfer manager.
    Enqueue,
    Many,
}

/// A manager whose transfers a profiler observes; none in the reference.
struct Profiled {
    copies: usize,
    library: Library,
    profiler: Option<StreamProfiler>,
    /// As many for each thread.
    pairs: Vec<(RawBuffer, RawBuffer)>,
    content: Vec<u8>,
}

impl Profiled {
    fn new(
        fixture: &Fixture<'_>,
        threads: usize,
        sampling: Option<OperationSampling>,
        is_attached: bool,
    ) -> Result<Self> {
        let options = ProfilerOptions::new().sampling(sampling.unwrap_or_default());
        let profiler = is_attached.then(|| StreamProfiler::new(options));
        let mut builder = CrossBackendTransferManager::builder().registration(false);
        if let Some(profiler) = &profiler {
            builder = builder.observer(profiler.observer());
        }
        let manager = builder.build();
        manager.register_backend(CpuBackend::new()?)?;
        let config = CudaBackendConfig::default().with_devices(cuda::pair(fixture.device.ordinal())?);
        manager.register_backend(CudaBackend::open(&config)?)?;
        let library = Library { manager, device: fixture.device.id(), peer: None };
        if let Some(profiler) = &profiler {
            profiler.attach(&library.manager.backend(library.device)?)?;
            profiler.enable()?;
            profiler.disable();
        }
        let bytes = BYTES * fixture.amount(PIECES) * threads;
        let (src, dst) =
            (library.allocate(MemoryKind::Pinned, bytes)?, library.allocate(MemoryKind::Device, bytes)?);
        let content = Content::new(bytes, 0x9F0F).part(0, bytes).to_vec();
        Memory::Ours(src.clone()).write(0, &content)?;
        let part = |of: &RawBuffer, at: usize| of.slice(at * BYTES..(at + 1) * BYTES);
        let count = bytes / BYTES;
        let pairs = (0..count).map(|at| Ok((part(&src, at)?, part(&dst, count - 1 - at)?)));
        let pairs = pairs.collect::<Result<_>>()?;
        Ok(Self { copies: fixture.amount(COPIES), library, profiler, pairs, content })
    }

    /// Returns the nanoseconds of a copy, or of a list.
    fn copy(&self, (how, threads): (How, usize)) -> Result<f64> {
        let of_thread = |pairs| self.copy_by_thread(how, pairs);
        let parts = self.pairs.chunks(self.pairs.len() / threads);
        thread::scope(|scope| {
            let (first, others) = (parts.clone().next().context("there are pairs")?, parts.skip(1));
            let others: Vec<_> = others.map(|pairs| scope.spawn(move || of_thread(pairs))).collect();
            let first = of_thread(first);
            let of_other = |thread: thread::ScopedJoinHandle<'_, Result<f64>>| {
                thread.join().unwrap_or_else(|_| anyhow::bail!("a thread panicked"))
            };
            let others = others.into_iter().map(of_other).collect::<Result<Vec<_>>>();
            Ok((first? + others?.into_iter().sum::<f64>()) / threads as f64)
        })
    }

    /// Copies the first pair again and again, or all as a list.
    fn copy_by_thread(&self, how: How, pairs: &[(RawBuffer, RawBuffer)]) -> Result<f64> {
        /// Copies that are submitted before the first of them is waited for.
        const AT_ONCE: usize = 32;
        let manager = &self.library.manager;
        let (src, dst) = pairs.first().context("there are pairs")?;
        let rounds = self.copies.div_ceil(AT_ONCE);
        match how {
            How::Wait => timed(self.copies, || Ok(manager.copy(src, dst).wait().map(drop)?)),
            How::Submit => {
                let mut taken = 0.0;
                for _ in 0..rounds {
                    let mut copies = Vec::with_capacity(AT_ONCE);
                    taken += timed(AT_ONCE, || {
                        copies.push(manager.copy(src, dst).submit());
                        Ok(())
                    })?;
                    copies.into_iter().try_for_each(|copy| copy.wait().map(drop))?;
                }
                Ok(taken / rounds as f64)
            }
            How::Enqueue => {
                let backend = manager.backend(self.library.device)?;
                let stream =
                    backend.lease_queue(self.library.device, StreamPriority::Normal, WorkloadType::Memory)?;
                let mut taken = 0.0;
                for _ in 0..rounds {
                    let mut last = None;
                    taken += timed(AT_ONCE, || {
                        last = Some(submit(&*stream, &Operation::Copy { src, dst }, Timing::Off)?);
                        Ok(())
                    })?;
                    last.map_or(Ok(()), |last| last.wait())?;
                }
                Ok(taken / rounds as f64)
            }
            How::Many => {
                timed(LISTS_AT_ONCE, || Ok(manager.copy_many(pairs).exclusive().wait().map(drop)?))
            }
        }
    }
}

/// The destinations that are copied to.
struct Copied<'a>(&'a Profiled, (How, usize));

impl Copied<'_> {
    /// Returns the destinations, each with what it gets.
    fn each(&self) -> impl Iterator<Item = (&RawBuffer, &[u8])> {
        let Self(profiled, (how, threads)) = self;
        let of_thread = profiled.pairs.len() / threads;
        let is_copied = move |index: &usize| *how == How::Many || index.is_multiple_of(of_thread);
        let all = profiled.pairs.iter().zip(profiled.content.chunks(BYTES)).enumerate();
        all.filter(move |(index, _)| is_copied(index)).map(|(_, ((_, dst), content))| (dst, content))
    }
}

impl Verify for Copied<'_> {
    fn poison(&self) -> Result<()> {
        self.each().try_for_each(|(dst, _)| Memory::Ours(dst.clone()).poison())
    }

    fn check(&self) -> Result<()> {
        self.each().try_for_each(|(dst, content)| Memory::Ours(dst.clone()).compare(0, content))
    }
}

fn overhead(fixture: &Fixture<'_>, name: &str, how: (How, usize), sampled: &[Sampled]) -> Result<Vec<Row>> {
    let (is_list, threads) = (how.0 == How::Many, how.1);
    let unprofiled = Profiled::new(fixture, threads, None, false)?;
    let of = |(name, what, sampling): &Sampled| {
        let profiled = Profiled::new(fixture, threads, *sampling, true)?;
        if let (Some(profiler), true) = (&profiled.profiler, sampling.is_some()) {
            profiler.enable()?;
        }
        Ok((*name, *what, profiled))
    };
    let profiled: Vec<_> = sampled.iter().map(of).collect::<Result<_>>()?;
    let copied = Copied(&unprofiled, how);
    let all_copied: Vec<_> = profiled.iter().map(|(.., profiled)| Copied(profiled, how)).collect();
    let off = Variant::new("off", "no profiler", || unprofiled.copy(how));
    let mut variants = vec![off.by_library().verified_by(&copied)];
    for ((name, what, profiled), copied) in profiled.iter().zip(&all_copied) {
        let run = || profiled.copy(how);
        let variant = Variant::new(name, &format!("profiler: {what}"), run).verified_by(copied);
        variants.push(match *name {
            "all" => variant,
            _ => variant.goal(Goal::RatioAtMost(if is_list { LISTS } else { SAMPLED })),
        });
    }
    let what = if is_list {
        format!("copy_many of {PIECES} pieces of {BYTES} bytes, pinned up, {threads} at once")
    } else {
        format!("a copy of {BYTES} bytes from pinned memory, {name}, mean of {COPIES}")
    };
    let comparison = Comparison {
        id: format!("profiling/{name}"),
        what,
        unit: "ns",
        bytes: (BYTES * if is_list { unprofiled.pairs.len() / threads } else { 1 }) as u64,
        repetitions: fixture.few_repetitions(match (is_list, threads) {
            (true, _) => RUNS_OF_LISTS,
            (_, 1) => RUNS,
            _ => RUNS_OF_THREADS,
        }),
    };
    let rows = comparison.rows(fixture, variants)?;
    for profiled in profiled.into_iter().map(|(.., profiled)| profiled).chain([unprofiled]) {
        let Profiled { library, profiler, pairs, .. } = profiled;
        drop((pairs, profiler));
        library.finish()?;
    }
    Ok(rows)
}

/// A stream that waits for a word of the host is stamped, and answers with another word: the instant lies between the two on the host's clock.
fn clocks(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    if fixture.is_simulated() || !Driver::get()?.has(c"cuStreamWriteValue32_v2") {
        return Ok(Vec::new());
    }
    const STAMPS: usize = 400;
    let library = Library::new(fixture)?;
    let stream = CudaStream::new(&fixture.device)?;
    let words = library.allocate(MemoryKind::Mapped, 2 * size_of::<u32>())?;
    let gate = Gate::new(&words, stream.handle() as CUstream)?;
    fixture.bind()?;
    let clock = Arc::clone(stream.stamp()?.clock());
    let first = clock.anchor()?;
    let mut found = Vec::with_capacity(STAMPS);
    let begun = Instant::now();
    for number in 1..=STAMPS as u32 {
        gate.wait(number)?;
        let stamp = stream.stamp()?;
        gate.answer(number)?;
        // Over about as long as between two readings of a profiler.
        while begun.elapsed() < Duration::from_millis(4) * number {
            std::hint::spin_loop();
        }
        let (opened, answered) = gate.open(number);
        found.push((stamp, opened, answered));
    }
    let last = clock.anchor()?;
    let (mut off, mut widths) = (Vec::new(), Vec::new());
    for (stamp, opened, answered) in found {
        let at = on_host(stamp.time()?.context("the stream has passed the stamp")?, &first, &last);
        let since = |instant: Instant| (instant - first.before).as_secs_f64() * 1e6;
        off.push((since(opened) - at).max(at - since(answered)).max(0.0));
        widths.push(since(answered) - since(opened));
    }
    let half = |anchor: &ClockAnchor| (anchor.after - anchor.before).as_secs_f64() * 1e6 / 2.0;
    let stated = half(&first).max(half(&last)) + clock.resolution().as_secs_f64() * 1e6;
    let worst = off.iter().copied().fold(0.0, f64::max);
    let row = |id: &str, what: &str, values| {
        fixture.row(&format!("profiling/clock/{id}"), what, "stamps and anchors", "us", values)
    };
    let rows = vec![
        row(
            "off",
            "by how much instants lie outside what the host saw; the worst of 400",
            Summary::single(worst),
        )
        .with_goal(Some(Goal::AtMost(CLOCKS))),
        row("stated", "the error that is stated of them", Summary::single(stated))
            .with_goal(Some(Goal::AtMost(CLOCKS))),
        row(
            "seen",
            "time between opening a stream and its answer: how closely the host can tell",
            Summary::of(&widths),
        ),
    ];
    drop((clock, stream, words));
    library.finish()?;
    Ok(rows)
}

/// Copies that are queued behind a kernel, by events and by records of engines.
fn engines(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    const TIMES: usize = 100;
    const KERNEL: Duration = Duration::from_millis(5);
    let device = fixture.device.id();
    let mut rows = Vec::new();
    for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        for (way, from, to) in [
            ("up", MemoryKind::Pinned, MemoryKind::Device),
            ("down", MemoryKind::Device, MemoryKind::Pinned),
            ("within", MemoryKind::Device, MemoryKind::Device),
        ] {
            let profiled = Profiled::new(fixture, 1, Some(OperationSampling::ALL), true)?;
            let profiler = profiled.profiler.as_ref().context("it is attached")?;
            profiler.enable()?;
            match profiler.record_engines() {
                Err(error) if fixture.is_simulated() || error.kind() == ErrorKind::Unsupported => {
                    eprintln!("scaling/profiling/engines: skipped: {error}");
                    return Ok(rows);
                }
                recording => recording?,
            }
            let library = &profiled.library;
            let (src, dst) = (library.allocate(from, bytes)?, library.allocate(to, bytes)?);
            let content = Content::new(bytes, 0xE9).part(0, bytes).to_vec();
            Memory::Ours(src.clone()).write(0, &content)?;
            let stream = library.manager.backend(device)?.lease_queue(
                device,
                StreamPriority::Normal,
                WorkloadType::Memory,
            )?;
            stream.occupy(KERNEL)?;
            let mut last = None;
            for _ in 0..TIMES {
                last = Some(submit(&*stream, &Operation::Copy { src: &src, dst: &dst }, Timing::Off)?);
            }
            last.context("a copy")?.wait()?;
            Memory::Ours(dst.clone()).compare(0, &content)?;
            let report = profiler.get_comprehensive_report();
            let kinds = || report.streams.iter().flat_map(|stream| &stream.kinds);
            let copies = kinds().find(|kind| kind.kind == OperationKind::Copy && kind.exact.count > 0);
            let copies = copies.context("records of the copies")?;
            ensure!(copies.exact.count >= TIMES as u64, "records are missing: {report}");
            let mean = |total: u64, count: u64| total as f64 / count.max(1) as f64 / 1e3;
            let apart = (mean(copies.running.total_ns, copies.running.count)
                - mean(copies.exact.total_ns, copies.exact.count))
            .abs();
            let share = copies.agreeing as f64 / copies.exact.count as f64;
            let row = |id: &str, what: &str, unit, value| {
                let id = format!("profiling/engines/{id}/{way}/{bytes}");
                let what = format!("{what}, of {TIMES} queued copies");
                let mut row = fixture.row(&id, &what, "StreamProfiler", unit, value);
                row.bytes = bytes as u64;
                row.obtained(fixture.is_simulated(), true)
            };
            let agree = "share of event spans within 2 µs and 1 % of the engine's";
            rows.push(
                row("agree", agree, "share", Summary::single(share)).with_goal(Some(Goal::AtLeast(AGREEING))),
            );
            let by = "by how much event spans differ from the engine's, on average";
            rows.push(row("apart", by, "us", Summary::single(apart)));
            drop((stream, src, dst));
            let Profiled { library, profiler, pairs, .. } = profiled;
            drop((pairs, profiler));
            library.finish()?;
        }
    }
    Ok(rows)
}

/// Converts an instant of the device to microseconds of the host since the first reading began.
fn on_host(device: i64, first: &ClockAnchor, last: &ClockAnchor) -> f64 {
    let middle = |anchor: &ClockAnchor| {
        ((anchor.before - first.before) + (anchor.after - anchor.before) / 2).as_secs_f64() * 1e6
    };
    let rate = (middle(last) - middle(first)) / (last.device - first.device) as f64;
    middle(first) + (device - first.device) as f64 * rate
}

/// Two words in mapped memory: one that a stream waits for, and one that it answers with.
struct Gate<'a> {
    stream: CUstream,
    device: u64,
    words: &'a [AtomicU32; 2],
}

impl<'a> Gate<'a> {
    fn new(buffer: &'a RawBuffer, stream: CUstream) -> Result<Self> {
        let host = buffer.host_address().context("mapped memory without a host address")?;
        let device = buffer.device_address().context("mapped memory without a device address")?;
        // SAFETY: the buffer has 8 aligned bytes and outlives the borrow; all access to them is atomic.
        let words = unsafe { host.cast::<[AtomicU32; 2]>().as_ref() };
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Ok(Self { stream, device, words })
    }

    fn wait(&self, number: u32) -> Result<()> {
        // SAFETY: the words live until the stream has passed; 0 waits for this value or a later one.
        Ok(check("cuStreamWaitValue32", unsafe {
            ffi::cuStreamWaitValue32_v2(self.stream, self.device, number, 0)
        })?)
    }

    fn answer(&self, number: u32) -> Result<()> {
        // SAFETY: as above.
        let code = unsafe { ffi::cuStreamWriteValue32_v2(self.stream, self.device + 4, number, 0) };
        Ok(check("cuStreamWriteValue32", code)?)
    }

    /// Lets the stream pass. Returns the instants before that and after its answer.
    fn open(&self, number: u32) -> (Instant, Instant) {
        let [gate, answer] = self.words;
        let opened = Instant::now();
        gate.store(number, Ordering::Release);
        while answer.load(Ordering::Acquire) != number {
            std::hint::spin_loop();
        }
        (opened, Instant::now())
    }
}
