//! Warm allocation and free in stream order: in one thread, and in eight on streams of their own.

use std::time::Instant;

use anyhow::{Context as _, Result};
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{Backend as _, MemoryKind};
use transload_memory::CudaResource;
use transload_streams::{CudaStream, StreamOrderedAllocator};

use super::{
    Fixture,
    comparison::{Comparison, Variant},
    concurrent::{Round, run_concurrently},
    cudarc_baseline,
    uploading::rates,
};
use crate::{
    reference::{RawPool, RawQueue},
    row::{Goal, Row, Summary},
};

const THREADS: usize = 8;
/// Sizes: of a small tensor, and the one that PyTorch was measured with.
const SIZES: [usize; 2] = [4096, 1 << 20];
/// Nanoseconds for an allocation and its free, of 1 MiB in one thread.
const MOST: f64 = 100.0;
/// How many times the throughput of one thread eight have together.
const TOGETHER: f64 = 4.0;

fn allocator(fixture: &Fixture<'_>) -> Result<StreamOrderedAllocator> {
    Ok(StreamOrderedAllocator::new(CudaResource::new(&fixture.memory, MemoryKind::Device)?))
}

/// As frameworks use it: an address, freed by hand.
#[inline]
fn own_pair(allocator: &StreamOrderedAllocator, stream: &CudaStream, bytes: usize) -> Result<()> {
    let block = allocator.allocate_for_stream(stream, bytes)?;
    Ok(allocator.free_on(block, stream)?)
}

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    // The software driver's pool takes a millisecond where a device takes a microsecond.
    let many = if fixture.is_simulated() { 2 } else { 2000 };
    let mut rows = Vec::new();
    for bytes in SIZES {
        rows.extend(alone(fixture, bytes, many)?);
        rows.extend(eight_threads(fixture, bytes, many)?);
    }
    Ok(rows)
}

#[inline]
fn raw_pair(pool: &RawPool, queue: &RawQueue, bytes: usize) -> Result<()> {
    let address = pool.allocate(bytes, queue)?;
    // SAFETY: nobody used it.
    unsafe { pool.free(address, queue) }
}

/// In one thread, `many` pairs in a row.
fn alone(fixture: &Fixture<'_>, bytes: usize, many: usize) -> Result<Vec<Row>> {
    let (pool, queue) = (raw_pool(fixture)?, RawQueue::new(0)?);
    let (allocator, stream) = (allocator(fixture)?, CudaStream::new(&fixture.device)?);
    let config = CudaBackendConfig::default().with_devices([fixture.device.ordinal()]);
    let backend = CudaBackend::open(&config)?;
    let theirs = fixture.cudarc.as_ref().map(cudarc_baseline::CudarcBaseline::stream).transpose()?;
    let goal = (bytes == 1 << 20).then_some(Goal::AtMost(MOST));
    let mut ours = Variant::new("allocator", "StreamOrderedAllocator", || {
        let took = timed(many, || own_pair(&allocator, &stream, bytes))?;
        stream.synchronize()?;
        Ok(took)
    });
    ours.goal = goal;
    let mut variants = vec![
        Variant::new("raw", "raw driver, cuMemAllocFromPoolAsync and cuMemFreeAsync", || {
            let took = timed(many, || raw_pair(&pool, &queue, bytes))?;
            queue.finish()?;
            Ok(took)
        }),
        ours,
        Variant::new("buffer", "StreamOrderedAllocator, an owned buffer and its drop", || {
            let took = timed(many, || {
                drop(allocator.allocate_buffer(&stream, bytes)?);
                Ok(())
            })?;
            stream.synchronize()?;
            Ok(took)
        }),
        Variant::new("backend", "Backend::allocate and the buffer's drop", || {
            timed(many, || {
                drop(backend.allocate(fixture.device.id(), MemoryKind::Device, bytes)?);
                Ok(())
            })
        }),
    ];
    if let Some(theirs) = &theirs {
        variants.push(Variant::new(
            "cudarc",
            &format!("{}, alloc() and drop", cudarc_baseline::NAME),
            || {
                let took = timed(many.min(500), || cudarc_baseline::pair(theirs, bytes))?;
                theirs.synchronize()?;
                Ok(took)
            },
        ));
    }
    let comparison = Comparison {
        id: format!("allocate/{bytes}/threads-1"),
        what: format!("allocating {bytes} bytes and freeing them, warm, 1 thread"),
        unit: "ns",
        bytes: 0,
        repetitions: fixture.repetitions(100),
    };
    let rows = comparison.rows(fixture, variants);
    backend.drain()?;
    rows
}

fn raw_pool(fixture: &Fixture<'_>) -> Result<RawPool> {
    RawPool::new(fixture.device.driver().as_raw())
}

fn timed(many: usize, mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    for _ in 0..many {
        once()?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e9 / many as f64)
}

/// How many times as many pairs as of the raw driver make a round of the library's about as long.
const QUICKER: usize = 25;

/// Pairs a second of so many threads together: raw, ours, cudarc's.
fn throughput(fixture: &Fixture<'_>, threads: usize, bytes: usize, many: usize) -> Result<Vec<Summary>> {
    let counts = [many, many * QUICKER, many];
    let (pool, allocator) = (raw_pool(fixture)?, allocator(fixture)?);
    let (pool, allocator) = (&pool, &allocator);
    let make = |_thread: usize| -> Result<Vec<Round<'_>>> {
        fixture.bind()?;
        let (queue, stream) = (RawQueue::new(0)?, CudaStream::new(&fixture.device)?);
        let mut variants: Vec<Round<'_>> = vec![
            Box::new(move || (0..many).try_for_each(|_| raw_pair(pool, &queue, bytes))),
            Box::new(move || (0..counts[1]).try_for_each(|_| own_pair(allocator, &stream, bytes))),
        ];
        if let Some(cudarc) = &fixture.cudarc {
            let theirs = cudarc.stream()?;
            variants
                .push(Box::new(move || (0..many).try_for_each(|_| cudarc_baseline::pair(&theirs, bytes))));
        }
        Ok(variants)
    };
    let variants = if fixture.cudarc.is_some() { 3 } else { 2 };
    let seconds = run_concurrently(threads, variants, fixture.repetitions(40), make)?;
    let rate = |(seconds, count): (&Summary, usize)| rates(*seconds, threads * count);
    Ok(seconds.iter().zip(counts).map(rate).collect())
}

fn eight_threads(fixture: &Fixture<'_>, bytes: usize, many: usize) -> Result<Vec<Row>> {
    let (one, all) = (throughput(fixture, 1, bytes, many)?, throughput(fixture, THREADS, bytes, many)?);
    let raw = *all.first().context("no variant was measured")?;
    let variants = [
        ("raw", "raw driver", None),
        ("allocator", "StreamOrderedAllocator", Some(Goal::RatioAtLeast(TOGETHER))),
        ("cudarc", cudarc_baseline::NAME, None),
    ];
    let what =
        format!("allocating {bytes} bytes and freeing them, warm, {THREADS} threads on streams of their own");
    let mut rows = Vec::new();
    for ((name, method, goal), (one, all)) in variants.into_iter().zip(one.iter().zip(&all)) {
        let row = |suffix: &str| {
            let id = format!("allocate/{bytes}/threads-{THREADS}/{name}{suffix}");
            fixture.row(&id, &what, method, "pairs/s", *all)
        };
        rows.push(row("").against_library("the same, 1 thread", *one).with_goal(goal));
        if name != "raw" {
            rows.push(row("/beside-raw").against("raw driver, 8 threads", raw));
        }
    }
    Ok(rows)
}
