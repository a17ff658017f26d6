//! Host to host: the overhead of small copies over memcpy, with one and many buffers and threads.

use std::{num::NonZeroUsize, ptr::NonNull, thread};

use anyhow::{Context as _, Result, ensure};
use transload_backend_cpu::CpuBackend;
use transload_core::{DeviceId, MemoryKind, RawBuffer};
use transload_transfer::CrossBackendTransferManager;

use super::{GROUP, timed};
use crate::{
    address::Address,
    comparison::{
        Comparison, Variant, Verify,
        concurrent::{Round, run_concurrently},
    },
    content::Content,
    memory::Memory,
    options::Options,
    reference::{Memcpy, ParallelMemcpy, Reference as _},
    row::{Goal, Row, Summary},
    rows::is_verified,
};

const SIZES: [usize; 2] = [64, 4096];
/// Sizes of copies that several threads may make faster than one.
const LARGE: [usize; 7] = [64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];
const LARGEST_QUICK: usize = 4 << 20;
/// Most threads of the parallel memcpy.
const COPIERS: usize = 16;
const BUFFERS: usize = 64;
const THREADS: usize = 8;
/// Bytes of a copy of many threads.
const CROWDED: usize = 4096;
/// Goal: nanoseconds over memcpy.
const MOST_OVER: f64 = 150.0;
const NOISE: f64 = 0.02;
/// Goal: throughput of eight threads relative to one.
const TOGETHER: f64 = 6.0;

pub(super) fn rows(options: &Options) -> Result<Vec<Row>> {
    let repetitions = |good: usize| match options.repetitions {
        Some(given) => given as usize,
        None if options.quick => 30,
        None => good,
    };
    let many = if options.quick { 200 } else { 2000 };
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new()?)?;
    let mut rows = Vec::new();
    for bytes in SIZES {
        rows.extend(alone(&manager, options, bytes, many, repetitions(100))?);
    }
    for bytes in LARGE.into_iter().filter(|bytes| !options.quick || *bytes <= LARGEST_QUICK) {
        rows.push(large(&manager, options, bytes, repetitions(30))?);
    }
    rows.extend(eight_threads(&manager, options, many, repetitions(40))?);
    manager.drain()?;
    for (name, counts) in manager.resource_counts() {
        ensure!(counts.is_empty(), "still allocated in the {name} backend: {counts}");
    }
    Ok(rows)
}

/// A goal applies to full runs only; short ones are too noisy.
fn goal(options: &Options, goal: Goal) -> Option<Goal> {
    (!options.quick).then_some(goal)
}

fn alone(
    manager: &CrossBackendTransferManager,
    options: &Options,
    bytes: usize,
    many: usize,
    repetitions: usize,
) -> Result<Vec<Row>> {
    let pairs = Copies::new(manager, BUFFERS, bytes)?;
    let one = pairs.list.first().context("no pair")?;
    let mut memcpy = pairs.memcpys()?;
    let mut in_turns = pairs.memcpys()?;
    let mut turn = 0_usize;
    let goal = || goal(options, Goal::AtMostOver(MOST_OVER));
    let mut each = 0_usize;
    let ours = Variant::new("wait", "transfer().wait()", || {
        timed(many, || Ok(manager.copy(&one.0, &one.1).wait().map(|_report| ())?))
    });
    let comparison = Comparison {
        id: format!("host/{bytes}"),
        what: format!("copies of {bytes} bytes from host to host, one after the other, each"),
        unit: "ns",
        bytes: bytes as u64,
        repetitions,
    };
    let first = pairs.first()?;
    let mut rows = comparison.rows_of(
        GROUP,
        false,
        vec![
            Variant::new("memcpy", "memcpy", || {
                let copy = memcpy.first_mut().context("no pair")?;
                timed(many, || copy.submit())
            })
            .verified_by(&first),
            Variant { goal: goal(), ..ours.verified_by(&first) },
        ],
    )?;
    let comparison = Comparison { id: format!("host/{bytes}/buffers-{BUFFERS}"), ..comparison };
    let ours = Variant::new("wait", "transfer().wait(), 64 pairs in turns", || {
        timed(many.max(BUFFERS), || {
            each = (each + 1) % BUFFERS;
            let (src, dst) = pairs.list.get(each).context("no pair")?;
            Ok(manager.copy(src, dst).wait().map(|_report| ())?)
        })
    });
    rows.extend(comparison.rows_of(
        GROUP,
        false,
        vec![
            Variant::new("memcpy", "memcpy, 64 pairs in turns", || {
                timed(many.max(BUFFERS), || {
                    turn = (turn + 1) % BUFFERS;
                    in_turns.get_mut(turn).context("no pair")?.submit()
                })
            })
            .verified_by(&pairs),
            Variant { goal: goal(), ..ours.verified_by(&pairs) },
        ],
    )?);
    Ok(rows)
}

/// One copy next to the better of memcpy and a parallel memcpy. With each by itself: the parallel one's threads spin for a while after
/// their copy and keep the bytes in their caches, which would slow down whichever of three is measured after it more often.
fn large(
    manager: &CrossBackendTransferManager,
    options: &Options,
    bytes: usize,
    repetitions: usize,
) -> Result<Row> {
    let pairs = Copies::new(manager, 1, bytes)?;
    let (src, dst) = pairs.list.first().context("no pair")?;
    let comparison = Comparison {
        id: format!("host/{bytes}"),
        what: format!("a copy of {bytes} bytes from host to host"),
        unit: "ns",
        bytes: bytes as u64,
        repetitions,
    };
    let beside = |reference: Variant<'_>| {
        let ours = Variant::new("wait", "copy().wait()", || {
            after_itself(|| Ok(manager.copy(src, dst).wait().map(|_report| ())?))
        });
        let variants = [reference, ours].map(|variant| variant.verified_by(&pairs)).into();
        comparison.rows_of(GROUP, false, variants)?.pop().context("no row")
    };
    let mut memcpy = copy(src, dst)?;
    let by_one = beside(Variant::new("memcpy", "memcpy", || after_itself(|| memcpy.submit())))?;
    let copiers = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(COPIERS);
    // SAFETY: as in `copy`.
    let mut parallel =
        unsafe { ParallelMemcpy::new(host_address(src)?, host_address(dst)?, bytes, copiers) }?;
    let by_many = beside(Variant::new("memcpy", &format!("memcpy by {copiers} threads"), || {
        after_itself(|| {
            parallel.submit()?;
            parallel.finish()
        })
    }))?;
    let better = if by_many.reference_value < by_one.reference_value { by_many } else { by_one };
    // Two equal programs differ by so much.
    let noise = NOISE * better.reference_value.unwrap_or_default();
    Ok(better.with_goal(goal(options, Goal::AtMostOver(MOST_OVER.max(noise.round())))))
}

/// Times the second of two copies: the first brings the bytes into the caches of the processors that copy them, which the
/// variant before left in those of others.
fn after_itself(mut copy: impl FnMut() -> Result<()>) -> Result<f64> {
    copy()?;
    timed(1, copy)
}

/// Copies per second of one thread and of eight, each on its own buffers.
fn eight_threads(
    manager: &CrossBackendTransferManager,
    options: &Options,
    many: usize,
    repetitions: usize,
) -> Result<Vec<Row>> {
    // Each has destinations of its own, so that one that moves nothing is found.
    let both = [Copies::new(manager, THREADS, CROWDED)?, Copies::new(manager, THREADS, CROWDED)?];
    let [theirs, ours] = &both;
    both.iter().try_for_each(Copies::poison)?;
    let rates = |threads: usize| -> Result<Vec<Summary>> {
        let make = |thread: usize| -> Result<Vec<Round<'_>>> {
            let (from, to) = theirs.list.get(thread).context("no pair")?;
            let (src, dst) = ours.list.get(thread).context("no pair")?;
            let mut memcpy = copy(from, to)?;
            Ok(vec![
                Box::new(move || (0..10 * many).try_for_each(|_| memcpy.submit())),
                Box::new(move || {
                    (0..many).try_for_each(|_| Ok(manager.copy(src, dst).wait().map(|_report| ())?))
                }),
            ])
        };
        let seconds = run_concurrently(threads, 2, repetitions, make)?;
        let counts = [threads * 10 * many, threads * many];
        let rate = |(seconds, count): (&Summary, usize)| {
            let rate = |seconds: f64| count as f64 / seconds.max(1e-9);
            Summary { p10: rate(seconds.p90), p50: rate(seconds.p50), p90: rate(seconds.p10) }
        };
        Ok(seconds.iter().zip(counts).map(rate).collect())
    };
    let (one, all) = (rates(1)?, rates(THREADS)?);
    let verified = both.iter().all(|pairs| is_verified(pairs.check()));
    // The goal needs enough processors.
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let ours = goal(options, Goal::RatioAtLeast(TOGETHER)).filter(|_| processors >= 2 * THREADS);
    let variants = [("memcpy", "memcpy", None), ("wait", "transfer().wait()", ours)];
    let rows = variants.into_iter().zip(one.iter().zip(&all)).map(|((name, method, goal), (one, all))| {
        let id = format!("{GROUP}/host/{CROWDED}/threads-{THREADS}/{name}");
        let what = format!("{GROUP}: copies of {CROWDED} bytes by {THREADS} threads on buffers of their own");
        Row::new(id, what, method, CROWDED as u64, "copies/s", *all)
            .against_library("the same, 1 thread", *one)
            .obtained(false, verified)
            .with_goal(goal)
    });
    Ok(rows.collect())
}

/// Pairs of pageable buffers with contents.
struct Copies {
    list: Vec<(RawBuffer, RawBuffer)>,
    contents: Vec<Vec<u8>>,
}

impl Copies {
    fn new(manager: &CrossBackendTransferManager, count: usize, bytes: usize) -> Result<Self> {
        let mut content = Content::new(bytes, 0x4057 + bytes as u64);
        let mut copies = Self { list: Vec::new(), contents: Vec::new() };
        for _ in 0..count {
            let allocate = || manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes);
            let (src, dst) = (allocate()?, allocate()?);
            let start = content.draw();
            copies.contents.push(content.part(start, bytes).to_vec());
            Memory::Ours(src.clone()).write(0, content.part(start, bytes))?;
            copies.list.push((src, dst));
        }
        Ok(copies)
    }

    /// The first pair alone.
    fn first(&self) -> Result<Self> {
        let list = vec![self.list.first().context("no pair")?.clone()];
        Ok(Self { list, contents: self.contents.iter().take(1).cloned().collect() })
    }

    fn memcpys(&self) -> Result<Vec<Memcpy>> {
        self.list.iter().map(|(src, dst)| copy(src, dst)).collect()
    }
}

fn host_address(buffer: &RawBuffer) -> Result<NonNull<u8>> {
    match Memory::Ours(buffer.clone()).address()? {
        Address::Host(address) => Ok(address),
        Address::Device(_) => anyhow::bail!("pageable memory without a host address"),
    }
}

fn copy(src: &RawBuffer, dst: &RawBuffer) -> Result<Memcpy> {
    // SAFETY: the pair outlives every use of the copy, its two allocations do not overlap, and the variants have their turns.
    Ok(unsafe { Memcpy::new(host_address(src)?, host_address(dst)?, src.len()) })
}

impl Verify for Copies {
    fn poison(&self) -> Result<()> {
        self.list.iter().try_for_each(|(_, dst)| Memory::Ours(dst.clone()).poison())
    }

    fn check(&self) -> Result<()> {
        let each = self.list.iter().zip(&self.contents);
        each.into_iter().try_for_each(|((_, dst), content)| Memory::Ours(dst.clone()).compare(0, content))
    }
}
