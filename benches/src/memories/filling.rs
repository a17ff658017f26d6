//! Fills of device memory with patterns of every width, compared with the driver's byte fill.

use std::time::Instant;

use anyhow::Result;
use transload_core::{MemoryKind, Pattern, RawBuffer};
use transload_streams::CudaStream;

use crate::{
    address::Address,
    comparison::{Comparison, Fixture, Variant, Verify},
    memory::Memory,
    reference::RawQueue,
    row::{Goal, Row},
};

/// Fills in a row, so that each launch overlaps with the fill before.
const MANY: usize = 16;
const SIZES: [usize; 3] = [1 << 20, 16 << 20, 256 << 20];
/// Smallest size at which memory limits the rate.
const COUNTS: usize = 16 << 20;
/// Goal: rate relative to the driver's fill.
const LEAST: f64 = 0.9;

const PATTERNS: [(&str, Pattern); 5] = [
    ("1", Pattern::U8(0x5A)),
    ("2", Pattern::U16(0x1234)),
    ("4", Pattern::U32(0x3FC0_0001)),
    ("8", Pattern::U64(0x3FF8_0000_0000_0001)),
    ("16", Pattern::U128(0x0011_2233_4455_6677_8899_AABB_CCDD_EEFF)),
];

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for bytes in SIZES {
        rows.extend(fills(fixture, fixture.bytes(bytes))?);
    }
    Ok(rows)
}

fn fills(fixture: &Fixture<'_>, bytes: usize) -> Result<Vec<Row>> {
    let many = fixture.amount(MANY);
    let (queue, stream) = (RawQueue::new(0)?, CudaStream::new(&fixture.device)?);
    let filled = fixture.memory.allocate(MemoryKind::Device, bytes)?;
    let address = match Memory::Ours(filled.clone()).address()? {
        Address::Device(address) => address,
        Address::Host(address) => address.addr().get() as u64,
    };
    let rate = |begun: Instant| (many * bytes) as f64 / begun.elapsed().as_secs_f64() / 1e9;
    let proofs: Vec<Filled> = PATTERNS.iter().map(|(_, pattern)| Filled::new(&filled, *pattern)).collect();
    let raw_fill = Filled::new(&filled, Pattern::U8(0x77));
    let mut variants = vec![
        Variant::new("raw", "raw driver, cuMemsetD8Async", || {
            let begun = Instant::now();
            for _ in 0..many {
                // SAFETY: the memory lives on, and is used in turns only.
                unsafe { queue.fill(address, 0x77, bytes) }?;
            }
            queue.finish()?;
            Ok(rate(begun))
        })
        .verified_by(&raw_fill),
    ];
    for ((name, pattern), proof) in PATTERNS.into_iter().zip(&proofs) {
        let (stream, filled) = (&stream, &filled);
        let variant =
            Variant::new(&format!("width-{name}"), &format!("pattern of {name} bytes"), move || {
                let begun = Instant::now();
                for _ in 0..many - 1 {
                    // On one stream the last completes after all others.
                    drop(stream.memset_async(filled, pattern));
                }
                stream.memset_async(filled, pattern).wait()?;
                Ok(rate(begun))
            });
        // A fill that is shorter than a call does not show the memory's rate.
        let goal = (bytes >= COUNTS).then_some(Goal::RatioAtLeast(LEAST));
        variants.push(Variant { goal, ..variant.verified_by(proof) });
    }
    let comparison = Comparison {
        id: format!("fill/{bytes}"),
        what: format!("filling {bytes} bytes of device memory, {many} times in a row"),
        unit: "GB/s",
        bytes: bytes as u64,
        repetitions: fixture.repetitions(60),
    };
    comparison.rows(fixture, variants)
}

/// Memory filled with a pattern.
struct Filled {
    memory: Memory,
    pattern: Pattern,
}

impl Filled {
    fn new(buffer: &RawBuffer, pattern: Pattern) -> Self {
        Self { memory: Memory::Ours(buffer.clone()), pattern }
    }
}

impl Verify for Filled {
    fn poison(&self) -> Result<()> {
        self.memory.poison()
    }

    fn check(&self) -> Result<()> {
        let element = self.pattern.repeated();
        let expected: Vec<u8> = element.iter().copied().cycle().take(self.memory.len()).collect();
        self.memory.compare(0, &expected)
    }
}
