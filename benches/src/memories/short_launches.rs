//! Prediction compared with none for many short launches whose memory is on the device, where it is pure overhead.

use anyhow::Result;

use crate::{
    comparison::{Comparison, Fixture, Variant},
    prediction::{self, LaunchOrder, ShortLaunches, ShortLaunchesSize},
    row::{Goal, Row},
};

/// Goal: time of a launch relative to no prediction.
const MOST: f64 = 1.02;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for order in LaunchOrder::ALL {
        for ranges in [1, 3] {
            rows.extend(short(fixture, order, ranges)?);
        }
    }
    Ok(rows)
}

fn short(fixture: &Fixture<'_>, order: LaunchOrder, ranges: usize) -> Result<Vec<Row>> {
    let launches = fixture.amount(4096);
    let size = ShortLaunchesSize { chunks: 32, bytes: fixture.amount(16 << 10), launches, ranges };
    let comparison = |id: &str| Comparison {
        id: format!("predict/{id}-{}/{ranges}", order.name()),
        what: format!(
            "a launch of {} bytes with {ranges} ranges of unified memory on the device, {launches} at once, order {}",
            size.bytes,
            order.name()
        ),
        unit: "ns",
        bytes: 0,
        repetitions: fixture.repetitions(60),
    };
    // Each has memory of its own: pages that one prefetched would conflict with the others.
    let mut programs = Vec::new();
    for variant in ShortLaunches::MODES {
        programs.push((variant, ShortLaunches::new(&fixture.device, &fixture.memory, order, size)?));
    }
    let mut rows = Vec::new();
    for (id, reference, promises) in [
        ("short", prediction::PrefetchMode::Nothing, prediction::PrefetchMode::Automatic),
        ("short-executor", prediction::PrefetchMode::Executor, prediction::PrefetchMode::Predicting),
    ] {
        let compared =
            programs.iter().skip_while(|(variant, _)| *variant != reference).map(|(variant, program)| {
                // Every run adds up its own result and fails where that is wrong.
                let run = move || Ok(program.run(*variant)?.as_secs_f64() * 1e9 / launches as f64);
                let goal = (*variant == promises).then_some(Goal::RatioAtMost(MOST));
                Variant { goal, ..Variant::new(variant.name(), method(*variant), run).by_library() }
            });
        rows.extend(comparison(id).rows(fixture, compared.collect())?);
    }
    Ok(rows)
}

fn method(variant: prediction::PrefetchMode) -> &'static str {
    match variant {
        prediction::PrefetchMode::Nothing | prediction::PrefetchMode::Manual => "launches, no prediction",
        prediction::PrefetchMode::Automatic => "AutoPrefetcher beside the launches",
        prediction::PrefetchMode::Executor => "LaunchExecutor",
        prediction::PrefetchMode::Predicting => "LaunchExecutor with prediction",
    }
}
