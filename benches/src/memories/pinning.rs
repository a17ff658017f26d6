//! Warm allocation of pinned memory, and the memory reserved for each byte requested.

use std::time::Instant;

use anyhow::{Context as _, Result};
use transload_core::MemoryKind;
use transload_memory::{HostPages, MemoryResource as _, PinnedResource};
use transload_streams::{CudaStream, StreamOrderedAllocator};

use super::upload_loop;
use crate::{
    comparison::{Comparison, Fixture, Variant},
    raw_memory::RawMemory,
    row::{Goal, Row, Summary},
};

/// Nanoseconds for an allocation and its free.
const MOST: f64 = 150.0;
/// Bytes held for each byte asked for.
const WASTE: f64 = 1.1;
/// A small tensor, one of PyTorch's comparison, and sizes just above powers of two.
const SIZES: [usize; 4] = [4096, 1 << 20, (1 << 20) + 1, (33 << 20) + 4096];
/// What a program may keep at the same time: none is a power of two.
const KEPT: [usize; 8] = [
    (1 << 20) + 1,
    (3 << 20) + 5,
    (9 << 20) + 77,
    (33 << 20) + 4096,
    700_001,
    (5 << 20) + 3,
    (17 << 20) + 1,
    (65 << 20) + 12_288,
];
/// Bytes pinned at a time, and how often.
const COLD: [(usize, usize); 2] = [(4 << 20, 60), (64 << 20, 30)];

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for bytes in SIZES {
        rows.extend(warm(fixture, bytes)?);
    }
    rows.push(held(fixture)?);
    for (bytes, often) in COLD {
        rows.extend(cold(fixture, fixture.bytes(bytes), often)?);
    }
    rows.extend(upload_loop::rows(fixture)?);
    Ok(rows)
}

fn allocator(fixture: &Fixture<'_>) -> Result<StreamOrderedAllocator> {
    Ok(StreamOrderedAllocator::builder(PinnedResource::new(&fixture.memory)).exact_segments().build()?)
}

fn warm(fixture: &Fixture<'_>, bytes: usize) -> Result<Vec<Row>> {
    let many = if fixture.is_simulated() { 2 } else { 2000 };
    let (allocator, stream) = (allocator(fixture)?, CudaStream::new(&fixture.device)?);
    let variants = vec![
        Variant::new("raw", "raw driver, cuMemHostAlloc and cuMemFreeHost", || {
            let begun = Instant::now();
            drop(RawMemory::new(MemoryKind::Pinned, bytes)?);
            Ok(begun.elapsed().as_secs_f64() * 1e9)
        }),
        Variant::new("allocator", "StreamOrderedAllocator over pinned memory", || {
            let begun = Instant::now();
            for _ in 0..many {
                let block = allocator.allocate_for_stream(&stream, bytes)?;
                allocator.free_on(block, &stream)?;
            }
            Ok(begun.elapsed().as_secs_f64() * 1e9 / many as f64)
        })
        .goal(Goal::AtMost(MOST)),
        Variant::new(
            "buffer",
            "StreamOrderedAllocator over pinned memory, an owned buffer and its drop",
            || {
                let begun = Instant::now();
                for _ in 0..many {
                    drop(allocator.allocate_buffer(&stream, bytes)?);
                }
                Ok(begun.elapsed().as_secs_f64() * 1e9 / many as f64)
            },
        ),
    ];
    let comparison = Comparison {
        id: format!("pinned/{bytes}"),
        what: format!("allocating {bytes} bytes of pinned memory and freeing them, warm"),
        unit: "ns",
        bytes: 0,
        repetitions: fixture.repetitions(30),
    };
    comparison.rows(fixture, variants)
}

/// Bytes held by the allocator for each byte in use, with all of them in use at once.
fn held(fixture: &Fixture<'_>) -> Result<Row> {
    let (allocator, stream) = (allocator(fixture)?, CudaStream::new(&fixture.device)?);
    let asked: usize = KEPT.iter().sum();
    let blocks = KEPT.map(|bytes| allocator.allocate_for_stream(&stream, bytes));
    let held = allocator.statistics().reserved;
    for block in blocks {
        allocator.free_on(block.context("a block of the mix")?, &stream)?;
    }
    let what = format!("pinned memory held for {} tensors of {asked} bytes together", KEPT.len());
    let row = fixture.row(
        "pinned/held",
        &what,
        "StreamOrderedAllocator over pinned memory",
        "bytes held for each asked for",
        Summary::single(held as f64 / asked as f64),
    );
    Ok(row.with_goal(Some(Goal::AtMost(WASTE))))
}

/// Pinning and unpinning, with the driver's and our own pages.
fn cold(fixture: &Fixture<'_>, bytes: usize, often: usize) -> Result<Vec<Row>> {
    let mut variants = vec![Variant::new("raw", "raw driver, cuMemHostAlloc and cuMemFreeHost", || {
        let begun = Instant::now();
        drop(RawMemory::new(MemoryKind::Pinned, bytes)?);
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    })];
    for (name, pages) in [
        ("driver", HostPages::Driver),
        ("ordinary", HostPages::Ordinary),
        ("huge", HostPages::Huge),
        ("auto", HostPages::Auto),
    ] {
        if cfg!(not(target_os = "linux")) && matches!(pages, HostPages::Ordinary | HostPages::Huge) {
            // Pages cannot be chosen there.
            continue;
        }
        let resource = PinnedResource::new(&fixture.memory).with_pages(pages);
        variants.push(Variant::new(name, &format!("PinnedResource, {name} pages"), move || {
            let begun = Instant::now();
            drop(resource.allocate_segment(bytes)?);
            resource.trim()?;
            Ok(begun.elapsed().as_secs_f64() * 1e3)
        }));
    }
    let comparison = Comparison {
        id: format!("pinned/cold/{bytes}"),
        what: format!("pinning {bytes} bytes and giving them back"),
        unit: "ms",
        bytes: 0,
        repetitions: fixture.repetitions(often),
    };
    comparison.rows(fixture, variants)
}
