//! A large pinned array, which nothing pinned before can serve.

use std::time::Instant;

use anyhow::Result;
use transload::{DeviceId, MemoryKind};

use super::{finish, runtime};
use crate::{
    comparison::{Comparison, Fixture, Variant},
    raw_memory::RawMemory,
    row::{Goal, Row},
};

const BYTES: usize = 2 << 30;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let (runtime, bytes) = (runtime(fixture)?, fixture.bytes(BYTES));
    let device = DeviceId::Cuda(fixture.device.ordinal());
    // Both are freed after the measurement.
    let variants = vec![
        Variant::new("raw", "raw driver, cuMemHostAlloc", || {
            let begun = Instant::now();
            let _memory = RawMemory::new(MemoryKind::Pinned, bytes)?;
            Ok(begun.elapsed().as_secs_f64() * 1e3)
        }),
        Variant::new("alloc", "Runtime::alloc", || {
            runtime.drain()?;
            let begun = Instant::now();
            let _memory = runtime.alloc::<u8>(device, MemoryKind::Pinned, bytes)?;
            Ok(begun.elapsed().as_secs_f64() * 1e3)
        })
        .goal(Goal::RatioAtMost(0.5)),
    ];
    let comparison = Comparison {
        id: format!("pool/{bytes}"),
        what: format!("pinning {bytes} bytes"),
        unit: "ms",
        bytes: 0,
        repetitions: fixture.repetitions(10),
    };
    let rows = comparison.rows(fixture, variants)?;
    finish(&runtime)?;
    Ok(rows)
}
