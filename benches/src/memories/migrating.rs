//! Prefetches in both directions, from the call until the last page arrived.

use std::{cell::RefCell, time::Instant};

use anyhow::Result;
use transload_core::{DeviceId, MemoryKind, RawBuffer};
use transload_streams::CudaStream;

use crate::{
    address::Address,
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    memory::Memory,
    raw_memory::RawMemory,
    reference::{HOST, RawQueue},
    row::{Goal, Row},
};

/// Bytes and repetitions.
const SIZES: [(usize, usize); 4] = [(64 << 10, 300), (1 << 20, 300), (16 << 20, 100), (256 << 20, 30)];
/// Goal: time relative to raw calls.
const MOST: f64 = 1.05;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (bytes, often) in SIZES {
        let bytes = fixture.bytes(bytes);
        let kept = Kept::new(fixture, bytes)?;
        for to in [fixture.device.id(), DeviceId::Cpu] {
            rows.extend(migrations(fixture, &kept, bytes, to, often)?);
        }
    }
    Ok(rows)
}

fn migrations(
    fixture: &Fixture<'_>,
    kept: &Kept,
    bytes: usize,
    to: DeviceId,
    often: usize,
) -> Result<Vec<Row>> {
    let (queue, stream) = (RawQueue::new(0)?, CudaStream::new(&fixture.device)?);
    let device = fixture.device.driver().as_raw();
    let (there, back) = if to.is_cpu() { (HOST, device) } else { (device, HOST) };
    let ours = |to: DeviceId| match to {
        DeviceId::Cpu => stream.prefetch_to_host_async(&kept.ours),
        _ => stream.prefetch_to_device_async(&kept.ours, None),
    };
    let from = if to.is_cpu() { fixture.device.id() } else { DeviceId::Cpu };
    let variants = vec![
        Variant::new("raw", "raw driver, cuMemPrefetchAsync", || {
            // SAFETY: the memory lives on, and only contents matter to others.
            unsafe { queue.prefetch(kept.theirs_at, bytes, back) }?;
            queue.finish()?;
            let begun = Instant::now();
            // SAFETY: as above.
            unsafe { queue.prefetch(kept.theirs_at, bytes, there) }?;
            queue.finish()?;
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
        .verified_by(&kept.raw_proof),
        Variant::new("prefetch", "CudaStream, prefetch and wait()", || {
            ours(from).wait()?;
            let begun = Instant::now();
            ours(to).wait()?;
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
        .verified_by(&kept.our_proof)
        .goal(Goal::RatioAtMost(MOST)),
    ];
    let name = if to.is_cpu() { "host" } else { "device" };
    let comparison = Comparison {
        id: format!("prefetch/{name}/{bytes}"),
        what: format!("unified memory prefetched to the {name}, {bytes} bytes"),
        unit: "us",
        bytes: bytes as u64,
        repetitions: fixture.repetitions(often),
    };
    comparison.rows(fixture, variants)
}

/// Unified memory of both sides with contents that migrations must preserve.
struct Kept {
    ours: RawBuffer,
    theirs_at: u64,
    our_proof: Contents,
    raw_proof: Contents,
}

struct Contents {
    memory: Memory,
    content: RefCell<Content>,
    start: RefCell<Vec<u8>>,
}

impl Kept {
    fn new(fixture: &Fixture<'_>, bytes: usize) -> Result<Self> {
        let ours = fixture.memory.allocate(MemoryKind::Unified, bytes)?;
        let theirs = RawMemory::new(MemoryKind::Unified, bytes)?;
        let theirs_at = match theirs.address() {
            Address::Host(address) => address.addr().get() as u64,
            Address::Device(address) => address,
        };
        let proof = |memory| Contents {
            memory,
            content: RefCell::new(Content::new(bytes, 0x9A6E5)),
            start: RefCell::default(),
        };
        let (our_proof, raw_proof) = (proof(Memory::Ours(ours.clone())), proof(Memory::Cuda(theirs)));
        Ok(Self { ours, theirs_at, our_proof, raw_proof })
    }
}

impl Verify for Contents {
    /// Writes new contents, which a migration must preserve.
    fn poison(&self) -> Result<()> {
        let mut content = self.content.borrow_mut();
        let start = content.draw();
        let bytes = content.part(start, self.memory.len()).to_vec();
        self.memory.write(0, &bytes)?;
        self.start.replace(bytes);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.memory.compare(0, &self.start.borrow())
    }
}
