//! A transfer of High priority while gigabytes of Low priority are queued. Goal: four times the time on an idle device.

use std::time::Instant;

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer, StreamPriority};
use transload_transfer::TransferOptions;

use super::Library;
use crate::{
    address::Address,
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    memory::Memory,
    reference::RawQueue,
    row::{Goal, Row},
};

const BYTES: usize = 1 << 20;
/// Bytes of one Low transfer; `LARGE_ONES` are submitted first.
const LARGE: usize = 256 << 20;
const LARGE_ONES: usize = 16;
/// Goal: time relative to an idle device.
const MOST: f64 = 4.0;
const KINDS: [MemoryKind; 3] = [MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Pageable];

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let library = Library::new(fixture)?;
    let (bytes, large) = (fixture.bytes(BYTES), fixture.bytes(LARGE));
    let low = (library.allocate(MemoryKind::Pinned, large)?, library.allocate(MemoryKind::Device, large)?);
    if let Ok(mut view) = low.0.write() {
        view.fill(0x11);
    }
    let mut rows = Vec::new();
    for kind in KINDS {
        rows.extend(of_kind(fixture, &library, kind, bytes, &low)?);
    }
    drop(low);
    library.finish()?;
    Ok(rows)
}

fn of_kind(
    fixture: &Fixture<'_>,
    library: &Library,
    kind: MemoryKind,
    bytes: usize,
    low: &(RawBuffer, RawBuffer),
) -> Result<Vec<Row>> {
    let end = End::new(library, kind, bytes)?;
    let priority = |priority| TransferOptions::new().priority(priority);
    let (high, least) = (priority(StreamPriority::High), priority(StreamPriority::Low));
    let urgent = || -> Result<f64> {
        let begun = Instant::now();
        library.manager.copy(&end.src, &end.dst).options(high).wait()?;
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    };
    let (lowest, highest) = fixture.context()?.stream_priority_range()?;
    let queues = [RawQueue::new(lowest)?, RawQueue::new(highest)?];
    let addresses = [&low.0, &end.src].map(|buffer| Memory::Ours(buffer.clone()).address());
    let targets = [&low.1, &end.dst].map(|buffer| Memory::Ours(buffer.clone()).address());
    let mut variants = vec![
        Variant::new("idle", "High on an idle device", urgent).verified_by(&end),
        Variant::new("beside-low", "High beside 4 GiB of Low", || {
            for _ in 0..LARGE_ONES {
                drop(library.manager.copy(&low.0, &low.1).options(least).submit());
            }
            let took = urgent()?;
            low.1.wait_idle()?;
            Ok(took)
        })
        .goal(Goal::RatioAtMost(MOST))
        .verified_by(&end),
    ];
    if kind == MemoryKind::Pinned {
        let [from, first] = addresses;
        let [to, second] = targets;
        let (from, first, to, second) = (from?, first?, to?, second?);
        let [slow, quick] = &queues;
        variants.push(
            Variant::new(
                "raw-beside-low",
                "raw driver, most urgent stream beside 4 GiB on the least",
                move || {
                    for _ in 0..LARGE_ONES {
                        copy(slow, from, to, low.0.len())?;
                    }
                    let begun = Instant::now();
                    copy(quick, first, second, bytes)?;
                    quick.finish()?;
                    let took = begun.elapsed();
                    slow.finish()?;
                    Ok(took.as_secs_f64() * 1e6)
                },
            )
            .verified_by(&end),
        );
    }
    let comparison = Comparison {
        id: format!("urgent/{kind}/{bytes}"),
        what: format!("an upload of {bytes} bytes from {kind} memory with High priority"),
        unit: "us",
        bytes: bytes as u64,
        repetitions: fixture.repetitions(30),
    };
    comparison.rows(fixture, variants)
}

fn copy(queue: &RawQueue, from: Address, to: Address, bytes: usize) -> Result<()> {
    let (Address::Host(from), Address::Device(to)) = (from, to) else {
        anyhow::bail!("pinned memory and device memory were expected");
    };
    // SAFETY: both buffers live on while the rows are measured, have so many bytes, and the variants have their turns.
    unsafe { queue.copy_up(to, from.as_ptr().cast_const().cast(), bytes) }
}

/// Source and destination of the urgent transfer.
struct End {
    src: RawBuffer,
    dst: RawBuffer,
    content: Vec<u8>,
}

impl End {
    fn new(library: &Library, kind: MemoryKind, bytes: usize) -> Result<Self> {
        let (src, dst) = (library.allocate(kind, bytes)?, library.allocate(MemoryKind::Device, bytes)?);
        let mut content = Content::new(bytes, 0x0431);
        let start = content.draw();
        let content = content.part(start, bytes).to_vec();
        Memory::Ours(src.clone()).write(0, &content).context("the urgent transfer's source")?;
        Ok(Self { src, dst, content })
    }
}

impl Verify for End {
    fn poison(&self) -> Result<()> {
        Memory::Ours(self.dst.clone()).poison()
    }

    fn check(&self) -> Result<()> {
        Memory::Ours(self.dst.clone()).compare(0, &self.content)
    }
}
