//! The loop of a loader: allocate pinned memory, write it, upload it, free it. Compared with manual double buffering.

use std::{cell::RefCell, ptr::NonNull, time::Instant};

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer};
use transload_memory::PinnedResource;
use transload_streams::{CudaStream, StreamOrderedAllocator};

use crate::{
    address::Address,
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    memory::Memory,
    raw_memory::RawMemory,
    reference::{RawEvent, RawQueue},
    row::{Goal, Row},
};

/// Bytes of a block, blocks of a loop, and repetitions.
const LOOPS: [(usize, usize, usize); 2] = [(1 << 20, 64, 60), (16 << 20, 16, 30)];
/// Goal: time relative to manual double buffering.
const MOST: f64 = 1.05;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (bytes, blocks, often) in LOOPS {
        rows.extend(uploads(fixture, fixture.bytes(bytes), fixture.amount(blocks), often)?);
    }
    Ok(rows)
}

/// The blocks to upload and their destination.
struct Blocks {
    bytes: usize,
    source: Vec<u8>,
    target: RawBuffer,
    parts: Vec<RawBuffer>,
}

impl Blocks {
    fn new(fixture: &Fixture<'_>, bytes: usize, count: usize) -> Result<Self> {
        let source = Content::new(bytes * count, 0x100B).part(0, bytes * count).to_vec();
        let target = fixture.memory.allocate(MemoryKind::Device, source.len())?;
        let parts: transload_core::Result<_> =
            (0..count).map(|block| target.slice(block * bytes..(block + 1) * bytes)).collect();
        Ok(Self { bytes, source, target, parts: parts? })
    }

    /// Returns each block, its destination, and the destination's address.
    fn each(&self) -> impl Iterator<Item = (&[u8], &RawBuffer, u64)> {
        let start = self.target.device_address().unwrap_or(0);
        let addresses = (0..).map(move |block: u64| start + block * self.bytes as u64);
        let blocks = self.source.chunks_exact(self.bytes).zip(&self.parts);
        blocks.zip(addresses).map(|((source, part), address)| (source, part, address))
    }
}

impl Verify for Blocks {
    fn poison(&self) -> Result<()> {
        Memory::Ours(self.target.clone()).poison()
    }

    fn check(&self) -> Result<()> {
        Memory::Ours(self.target.clone()).compare(0, &self.source)
    }
}

/// Pinned memory of the driver, and an event after its last upload.
struct Half {
    memory: RawMemory,
    done: RawEvent,
}

impl Half {
    fn new(bytes: usize) -> Result<Self> {
        Ok(Self { memory: RawMemory::new(MemoryKind::Pinned, bytes)?, done: RawEvent::ordering()? })
    }

    /// Writes the block and enqueues its upload.
    fn upload(&self, queue: &RawQueue, source: &[u8], target: u64) -> Result<()> {
        // An event that was never recorded counts as complete.
        self.done.finish()?;
        let at = host(&self.memory)?;
        // SAFETY: the memory has as many bytes, and its last upload is done.
        unsafe { at.copy_from_nonoverlapping(NonNull::from(source).cast(), source.len()) };
        // SAFETY: both ranges are the comparison's, and the source is not written before its event is done.
        unsafe { queue.copy_up(target, at.as_ptr().cast(), source.len()) }?;
        queue.record(&self.done)
    }
}

fn host(memory: &RawMemory) -> Result<NonNull<u8>> {
    match memory.address() {
        Address::Host(address) => Ok(address),
        Address::Device(_) => None.context("pinned memory without a host address"),
    }
}

fn uploads(fixture: &Fixture<'_>, bytes: usize, count: usize, often: usize) -> Result<Vec<Row>> {
    let blocks = &Blocks::new(fixture, bytes, count)?;
    let queue = &RawQueue::new(0)?;
    let halves = [Half::new(bytes)?, Half::new(bytes)?];
    let raw = Variant::new("raw", "raw driver, two pinned buffers in turns, an event behind each", || {
        let begun = Instant::now();
        for ((source, _, target), half) in blocks.each().zip(halves.iter().cycle()) {
            half.upload(queue, source, target)?;
        }
        queue.finish()?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    });
    let fresh = RefCell::new(Vec::new());
    let allocating = Variant::new("allocating", "raw driver, cuMemHostAlloc for every block", || {
        let begun = Instant::now();
        for (source, _, target) in blocks.each() {
            let half = Half::new(bytes)?;
            half.upload(queue, source, target)?;
            fresh.borrow_mut().push(half);
        }
        queue.finish()?;
        fresh.borrow_mut().clear();
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    });
    let pool = || StreamOrderedAllocator::builder(PinnedResource::new(&fixture.memory)).exact_segments();
    let (ahead, behind, stream) =
        (pool().build()?, pool().run_ahead_limit(0).build()?, CudaStream::new(&fixture.device)?);
    let stream = &stream;
    let own = |pool: StreamOrderedAllocator| {
        move || {
            let begun = Instant::now();
            for (source, target, _) in blocks.each() {
                let buffer = pool.allocate_buffer(stream, bytes)?;
                buffer.write()?.copy_from_slice(source);
                drop(stream.copy_from_host_async(&buffer, target));
            }
            stream.synchronize()?;
            Ok(begun.elapsed().as_secs_f64() * 1e3)
        }
    };
    let variants = vec![
        raw.verified_by(blocks),
        allocating.verified_by(blocks),
        Variant::new(
            "allocator",
            "StreamOrderedAllocator over pinned memory, a buffer for each block",
            own(ahead),
        )
        .goal(Goal::RatioAtMost(MOST))
        .verified_by(blocks),
        Variant::new(
            "behind",
            "the same allocator with ahead(0): what was freed last is written next",
            own(behind),
        )
        .verified_by(blocks),
    ];
    let comparison = Comparison {
        id: format!("pinned/loop/{bytes}"),
        what: format!(
            "a loop that writes {count} blocks of {bytes} bytes into pinned memory and uploads them"
        ),
        unit: "ms",
        bytes: bytes as u64,
        repetitions: fixture.repetitions(often),
    };
    comparison.rows(fixture, variants)
}
