//! The cost of advice.

use std::time::Instant;

use anyhow::Result;
use transload_core::{MemoryAdvice, MemoryKind};
use transload_memory::advise;

use crate::{
    comparison::{Comparison, Fixture, Variant},
    reference::RawAdvice,
    row::{Goal, Row},
};

/// Pairs of set and unset in one measurement.
const MANY: usize = 32;
const BYTES: usize = 1 << 20;
/// Goal: time relative to raw calls.
const MOST: f64 = 1.05;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let (theirs, older) = (RawAdvice::new(BYTES)?, RawAdvice::new(BYTES)?);
    let ours = fixture.memory.allocate(MemoryKind::Unified, BYTES)?;
    let device = fixture.device.id();
    let raw = fixture.device.driver().as_raw();
    let kinds = [
        ("read-mostly", (1, 2), (MemoryAdvice::SetReadMostly, MemoryAdvice::UnsetReadMostly)),
        (
            "preferred",
            (3, 4),
            (MemoryAdvice::SetPreferredLocation(device), MemoryAdvice::UnsetPreferredLocation),
        ),
        ("accessed-by", (5, 6), (MemoryAdvice::SetAccessedBy(device), MemoryAdvice::UnsetAccessedBy(device))),
    ];
    let mut rows = Vec::new();
    for (name, (set, unset), (ours_set, ours_unset)) in kinds {
        let variants = vec![
            Variant::new("raw", "raw driver, cuMemAdvise_v2", || {
                let begun = Instant::now();
                for _ in 0..MANY {
                    theirs.advise(set, raw)?;
                    theirs.advise(unset, raw)?;
                }
                Ok(each(begun))
            }),
            Variant::new(
                "raw-relaxed",
                "raw driver, cuMemAdvise_v2 that leaves others' captures alone",
                || {
                    let begun = Instant::now();
                    for _ in 0..MANY {
                        theirs.advise_relaxed(set, raw)?;
                        theirs.advise_relaxed(unset, raw)?;
                    }
                    Ok(each(begun))
                },
            ),
            Variant::new("raw-older", "raw driver, cuMemAdvise", || {
                let begun = Instant::now();
                for _ in 0..MANY {
                    older.advise_older(set, raw)?;
                    older.advise_older(unset, raw)?;
                }
                Ok(each(begun))
            }),
            Variant::new("advise", "advise()", || {
                let begun = Instant::now();
                for _ in 0..MANY {
                    advise(&ours, ours_set)?;
                    advise(&ours, ours_unset)?;
                }
                Ok(each(begun))
            })
            .goal(Goal::RatioAtMost(MOST)),
            Variant::new("advise-bare", "advise() on a thread without a context", || {
                fixture.unbind()?;
                let begun = Instant::now();
                for _ in 0..MANY {
                    advise(&ours, ours_set)?;
                    advise(&ours, ours_unset)?;
                }
                let each = each(begun);
                fixture.bind()?;
                Ok(each)
            }),
        ];
        let comparison = Comparison {
            id: format!("advise/{name}"),
            what: format!("advice \"{name}\" on {BYTES} bytes of unified memory, given and taken back"),
            unit: "ns",
            bytes: 0,
            repetitions: fixture.repetitions(1000),
        };
        rows.extend(comparison.rows(fixture, variants)?);
    }
    Ok(rows)
}

fn each(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e9 / MANY as f64
}
