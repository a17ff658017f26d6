//! Automatic prefetch compared with none and with hand-written ones, where it can help and where it must not slow down.

use std::time::Duration;

use anyhow::Result;

use crate::{
    comparison::{Comparison, Fixture, Variant},
    prediction::{self, AccessPattern, PrefetchWorkload, PrefetchWorkloadSize},
    row::{Goal, Row},
};

/// Goal: time relative to no prefetch.
const MOST: f64 = 1.02;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for pattern in AccessPattern::ALL {
        rows.extend(workload(fixture, pattern)?);
    }
    Ok(rows)
}

/// Sizes with which every pattern takes some milliseconds.
fn size(fixture: &Fixture<'_>, pattern: AccessPattern) -> PrefetchWorkloadSize {
    let (ranges, times) = match pattern {
        AccessPattern::Sequential => (24, 1),
        AccessPattern::Strided => (72, 1),
        AccessPattern::Steps | AccessPattern::Random => (12, 4),
    };
    PrefetchWorkloadSize {
        ranges,
        bytes: fixture.bytes(4 << 20),
        times,
        busy: Duration::from_micros(200),
        depth: 3,
        seed: 0x5EED,
    }
}

fn workload(fixture: &Fixture<'_>, pattern: AccessPattern) -> Result<Vec<Row>> {
    let size = size(fixture, pattern);
    let workload = &PrefetchWorkload::new(&fixture.device, &fixture.memory, pattern, size)?;
    let variants = prediction::PrefetchMode::ALL.map(|variant| {
        let method = match variant {
            prediction::PrefetchMode::Nothing => "no prefetch: by page faults",
            prediction::PrefetchMode::Manual => "prefetches of the next ranges, written by hand",
            prediction::PrefetchMode::Automatic => "AutoPrefetcher, else by page faults",
            prediction::PrefetchMode::Executor => "LaunchExecutor, which prefetches what a launch declares",
            prediction::PrefetchMode::Predicting => "LaunchExecutor with prediction",
        };
        // Every run adds up its own result and fails where that is wrong.
        let run = Variant::new(variant.name(), method, move || {
            let (took, _predicted) = workload.run(variant)?;
            Ok(took.as_secs_f64() * 1e6)
        })
        .by_library();
        match variant {
            prediction::PrefetchMode::Automatic => run.goal(Goal::RatioAtMost(MOST)),
            _ => run,
        }
    });
    let comparison = Comparison {
        id: format!("predict/{}", pattern.name()),
        what: format!(
            "{} uses of {} bytes of unified memory by kernels, order {}",
            workload.uses(),
            size.bytes,
            pattern.name()
        ),
        unit: "us",
        bytes: 0,
        repetitions: fixture.repetitions(30),
    };
    comparison.rows(fixture, variants.into())
}
