//! The operations that are counted.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use transload_core::{
    DeviceId, ErrorKind, Fence, FloatType, ListWay, MemoryKind, Operation, OperationSampling, Pattern, Place,
    RawBuffer, StreamPriority, Timing, Transfer, TransferMethod, TransferPath, TransferReport, WorkloadType,
    submit,
};
use transload_cuda_sys::{Context, Device};
use transload_memory::{CudaDevice, CudaMemoryManager, CudaResource};
use transload_profiler::{ProfilerOptions, StreamProfiler};
use transload_streams::{AdvancedStreamPool, CudaStream, StreamOrderedAllocator};
use transload_transfer::{CopyManyTransfer, StridedLayout, TransferOptions};

use crate::{
    count::{Counts, Steady},
    library::Library,
};

/// Bytes of a short copy.
const SHORT: usize = 4096;
/// Bytes of copies: a short one, and one of several chunks.
const SIZES: [usize; 2] = [SHORT, 8 << 20];
const PIECES: usize = 100;
const PIECE: usize = 4096;

/// Counts every operation. `planted` makes one driver call more in one of them.
pub(crate) fn all(planted: bool) -> Result<String> {
    transload_cuda_sim::install().context("installing the software driver")?;
    let mut counts = Counts::new()?;
    let mut paths = 0;
    Library::with(None, |library| {
        paths = library.paths().len();
        choices(library, &mut counts)
    })?;
    for path in 0..paths {
        for bytes in SIZES {
            Library::with(None, |library| match library.paths().get(path) {
                Some(path) => copies(library, *path, bytes, &mut counts),
                None => Ok(()),
            })?;
        }
    }
    for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
        for up in [true, false] {
            Library::with(None, |library| lists(library, kind, up, &mut counts))?;
        }
    }
    Library::with(None, |library| others(library, planted, &mut counts))?;
    Library::with(None, |library| streams(library, &mut counts))?;
    let profiler = StreamProfiler::new(ProfilerOptions::new().sampling(OperationSampling::ALL));
    Library::with(Some(&profiler), |library| profiled(library, &profiler, &mut counts))?;
    Ok(counts.text())
}

/// The method of each size, and of lists the way.
fn choices(library: &Library, counts: &mut Counts) -> Result<()> {
    let (manager, options) = (&library.manager, TransferOptions::new());
    for path in library.paths() {
        let TransferPath { src, dst } = path;
        let mut facts = vec![format!("1 byte: {}", manager.plan(src, dst, 1, &options)?.method)];
        let crossings = manager.crossings(src, dst, &options)?.into_iter();
        facts.extend(crossings.map(|crossing| format!("{} bytes: {}", crossing.bytes, crossing.to)));
        for bytes in [256, 64 << 10] {
            for (exclusive, text) in [(false, ""), (true, ", exclusive")] {
                let plan = manager.plan_many(src, dst, (1000, bytes), exclusive)?;
                let way = plan.way.map_or_else(|| "one by one".to_owned(), |way| way.to_string());
                facts.push(format!("1000 pieces of {bytes} bytes{text}: {}, {way}", plan.method));
            }
        }
        counts.state(&format!("choice {}", library.name(path)), facts);
    }
    Ok(())
}

/// Each method on one path, waited for and submitted.
fn copies(library: &Library, path: TransferPath, bytes: usize, counts: &mut Counts) -> Result<()> {
    let manager = &library.manager;
    let (src, dst) = (library.allocate(path.src, bytes)?, library.allocate(path.dst, bytes)?);
    let plan = manager.plan(path.src, path.dst, bytes as u64, &TransferOptions::new())?;
    let others = plan.alternatives.iter().map(|other| other.method);
    let methods: Vec<TransferMethod> = others.chain([plan.method]).collect();
    for method in methods {
        let name = |how: &str| format!("copy {}, {method}, {bytes} bytes, {how}", library.name(path));
        let copy = || manager.copy(&src, &dst).method(method);
        let report = copy().wait()?;
        let chunks = format!("{} chunks on {} queues", report.chunks, report.lanes);
        counts.state(&name("waited"), [chunks]);
        let [waited, submitted] = steady(path, method, bytes);
        let (done, wait) = (|_report| Ok(()), |copy: Transfer| Ok(copy.wait().map(drop)?));
        counts.count((&name("waited"), waited), &library.devices, || Ok(copy().wait()?), done)?;
        counts.count((&name("submitted"), submitted), &library.devices, || Ok(copy().submit()), wait)?;
    }
    Ok(())
}

/// Returns what is the same in every run of a copy that is waited for, and of its submission.
fn steady(path: TransferPath, method: TransferMethod, bytes: usize) -> [Steady; 2] {
    let [from_host, to_host] = [path.src, path.dst].map(|place| place.device.is_cpu());
    match method {
        // What several threads have copied to neighbouring buffers goes on as one copy.
        TransferMethod::HostStaged if from_host && bytes > SHORT => [Steady::Nothing; 2],
        // The host's threads take part.
        TransferMethod::HostStaged => [Steady::Work, Steady::Nothing],
        TransferMethod::UnifiedMemory if from_host || to_host => [Steady::Work, Steady::Nothing],
        _ if from_host && to_host && bytes > SHORT => [Steady::Nothing; 2],
        // The end is a word in pinned memory, which is polled for a while.
        TransferMethod::DirectCopy if path.dst.kind == MemoryKind::Pinned && bytes == SHORT => {
            [Steady::Work, Steady::Calls]
        }
        _ => [Steady::All; 2],
    }
}

/// Lists of copies by each way, and replays.
fn lists(library: &Library, kind: MemoryKind, up: bool, counts: &mut Counts) -> Result<()> {
    let (manager, devices) = (&library.manager, &library.devices);
    let ends = (Place::new(DeviceId::Cpu, kind), Place::new(library.device(), MemoryKind::Device));
    let (src, dst) = if up { ends } else { (ends.1, ends.0) };
    let path = library.name(TransferPath::new(src, dst));
    let (src, dst) = (library.allocate(src, PIECES * PIECE)?, library.allocate(dst, PIECES * PIECE)?);
    let (from, to): (Vec<_>, Vec<_>) = (0..PIECES).map(|index| (index, index * 7 % PIECES)).unzip();
    let piece = |of: &RawBuffer, index: usize| of.slice(index * PIECE..(index + 1) * PIECE);
    let pairs = from.iter().zip(&to);
    let pairs = pairs.map(|(from, to)| Ok((piece(&src, *from)?, piece(&dst, *to)?)));
    let pairs = pairs.collect::<Result<Vec<_>>>()?;
    let [steady, submitted] = match (kind, up) {
        (MemoryKind::Pinned, _) => [Steady::All; 2],
        (_, true) => [Steady::Nothing; 2],
        (_, false) => [Steady::Work, Steady::Nothing],
    };
    let name = |what: &str| format!("list {path}, {PIECES} x {PIECE} bytes, {what}");
    let done = |_report| Ok(());
    let ways = ListWay::ALL.map(|way| (way.to_string(), manager.copy_many(&pairs).way(way)));
    let chosen = [
        ("chosen".to_owned(), manager.copy_many(&pairs)),
        ("chosen, exclusive".to_owned(), manager.copy_many(&pairs).exclusive()),
    ];
    for (how, list) in ways.iter().chain(&chosen) {
        let facts = match list.clone().wait() {
            Ok(report) => report.groups.iter().map(group).collect(),
            Err(refused) if refused.error.kind() == ErrorKind::Unsupported => vec!["unsupported".to_owned()],
            Err(failed) => return Err(failed.into()),
        };
        let is_supported = facts.iter().all(|fact| fact != "unsupported");
        counts.state(&name(how), facts);
        if is_supported {
            counts.count((&name(how), steady), devices, || Ok(list.clone().wait()?), done)?;
        }
    }
    for (how, list) in &chosen {
        let wait = |list: CopyManyTransfer| Ok(list.wait().map(drop)?);
        let submitted = (&*name(&format!("{how}, submitted")), submitted);
        counts.count(submitted, devices, || Ok(list.clone().submit()), wait)?;
        let recorded = list.clone().record()?;
        let name = name(&format!("{how}, replayed"));
        counts.count((&name, steady), devices, || Ok(recorded.replay().wait()?), done)?;
    }
    let (src, dst) = ([src.clone()], [dst.clone()]);
    let blocks = || Ok(manager.copy_blocks((&src, &from), (&dst, &to), PIECE)?.wait()?);
    counts.count((&name("copy_blocks"), steady), devices, blocks, done)
}

fn group(report: &TransferReport) -> String {
    let through = if report.through_device { ", through device memory" } else { "" };
    format!("{} pieces by {}{through}", report.chunks, report.method)
}

/// Other copies, and memory.
fn others(library: &Library, planted: bool, counts: &mut Counts) -> Result<()> {
    let (manager, devices, all) = (&library.manager, &library.devices, Steady::All);
    let there = Place::new(library.device(), MemoryKind::Device);
    let pinned = Place::new(DeviceId::Cpu, MemoryKind::Pinned);
    let (src, dst) = (library.allocate(pinned, 4096)?, library.allocate(there, 4096)?);
    let copy = || manager.copy(&src, &dst);
    let done = |_report| Ok(());
    let measured = || Ok(copy().timing(Timing::Measured).wait()?);
    counts.count(("copy pinned up, 4096 bytes, measured", all), devices, measured, done)?;
    let context = Context::primary(Device::new(devices[0].ordinal())?)?;
    let waited = || {
        if planted {
            context.memory_info()?;
        }
        Ok(copy().wait()?)
    };
    counts.count(("copy pinned up, 4096 bytes, waited", all), devices, waited, done)?;
    let layout = |pitch| StridedLayout::new(64).repeat(16, pitch);
    let rows = || Ok(manager.copy_strided((&src, &layout(256)), (&dst, &layout(64)))?.wait()?);
    counts.count(("copy_strided pinned up, 16 rows of 64 bytes", all), devices, rows, done)?;
    let half = src.slice(..2048)?;
    let cast = || Ok(manager.cast((&half, FloatType::F16), (&dst, FloatType::F32)).wait()?);
    counts.count(("cast pinned up, 1024 elements", all), devices, cast, |_report| Ok(()))?;
    for place in [there, pinned, Place::new(DeviceId::Cpu, MemoryKind::Pageable)] {
        let allocate = || Ok(library.allocate(place, 4096)?.len());
        counts.count(
            (&format!("allocate and drop {}, 4096 bytes", place.kind), all),
            devices,
            allocate,
            |_bytes| Ok(()),
        )?;
    }
    Ok(())
}

/// Streams, their pool, and what is enqueued on them.
fn streams(library: &Library, counts: &mut Counts) -> Result<()> {
    let (devices, all) = (&library.devices, Steady::All);
    let device = CudaDevice::new(devices[0].ordinal())?;
    let memory = Arc::new(CudaMemoryManager::new(&device)?);
    let stream = CudaStream::new(&device)?;
    let unified = memory.allocate(MemoryKind::Unified, 4 << 20)?;
    let prefetch = |to| submit(&stream, &Operation::Prefetch { buffer: &unified, to }, Timing::Off);
    // There and back, so that there is something to migrate.
    let both = || {
        prefetch(library.device())?;
        Ok(prefetch(DeviceId::Cpu)?)
    };
    let wait = |fence: Fence| Ok(fence.wait()?);
    counts.count(("prefetch 4 MiB to the device and back", all), devices, both, wait)?;
    let dst = memory.allocate(MemoryKind::Device, 4096)?;
    let fill = Operation::Fill { dst: &dst, pattern: Pattern::U8(7) };
    counts.count(("fill 4096 bytes", all), devices, || Ok(submit(&stream, &fill, Timing::Off)?), wait)?;
    let allocator = StreamOrderedAllocator::new(CudaResource::new(&memory, MemoryKind::Device)?);
    for bytes in SIZES {
        let pair = || {
            let block = allocator.allocate_for_stream(&stream, bytes)?;
            Ok(allocator.free_on(block, &stream)?)
        };
        counts.count((&format!("allocate and free on a stream, {bytes} bytes"), all), devices, pair, Ok)?;
    }
    let pool = AdvancedStreamPool::builder(&device).streams(4..=4).build()?;
    let lease = || Ok(pool.lease(StreamPriority::Normal, WorkloadType::Memory)?.handle());
    counts.count(("lease a stream of the pool", all), devices, lease, |_stream| Ok(()))
}

/// Copies that a profiler observes.
fn profiled(library: &Library, profiler: &StreamProfiler, counts: &mut Counts) -> Result<()> {
    let manager = &library.manager;
    profiler.attach(&manager.backend(library.device())?)?;
    let buffer = |kind| manager.allocate_for(library.device(), kind, SHORT);
    let (src, dst) = (buffer(MemoryKind::Pinned)?, buffer(MemoryKind::Device)?);
    let copy = || Ok(manager.copy(&src, &dst).wait()?);
    profiler.enable()?;
    let name = "profiled copy pinned up, 4096 bytes, every operation timed";
    // The profiler's thread gives events back.
    counts.count((name, Steady::Enqueued), &library.devices, copy, |_report| Ok(()))?;
    profiler.disable();
    // Reads the clocks for what was recorded, which the profiler's thread would do later.
    drop(profiler.get_comprehensive_report());
    let name = "profiled copy pinned up, 4096 bytes, disabled";
    counts.count((name, Steady::All), &library.devices, copy, |_report| Ok(()))
}
