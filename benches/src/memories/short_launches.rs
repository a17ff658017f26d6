//! Prediction beside none for many short launches whose memory is on the device: where it can only cost.

use anyhow::Result;

use crate::{
    comparison::{Contest, Rig, Way},
    prediction::{self, ShortLaunches, ShortOrder, ShortSize},
    row::{Goal, Row},
};

/// How many times as long as without it a launch may take with prediction.
const MOST: f64 = 1.02;

pub(super) fn rows(rig: &Rig<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for order in ShortOrder::ALL {
        for ranges in [1, 3] {
            rows.extend(short(rig, order, ranges)?);
        }
    }
    Ok(rows)
}

fn short(rig: &Rig<'_>, order: ShortOrder, ranges: usize) -> Result<Vec<Row>> {
    let launches = rig.amount(4096);
    let size = ShortSize { chunks: 32, bytes: rig.amount(16 << 10), launches, ranges };
    let contest = |id: &str| Contest {
        id: format!("predict/{id}-{}/{ranges}", order.name()),
        what: format!(
            "a launch of {} bytes with {ranges} ranges of unified memory on the device, {launches} at once, order {}",
            size.bytes,
            order.name()
        ),
        unit: "ns",
        bytes: 0,
        repetitions: rig.repetitions(60),
    };
    // Each has memory of its own: what one prefetched would be in the way of all.
    let mut programs = Vec::new();
    for way in ShortLaunches::WAYS {
        programs.push((way, ShortLaunches::new(&rig.device, &rig.memory, order, size)?));
    }
    let mut rows = Vec::new();
    for (id, reference, promises) in [
        ("short", prediction::Way::Nothing, prediction::Way::Automatic),
        ("short-executor", prediction::Way::Executor, prediction::Way::Predicting),
    ] {
        let compared = programs.iter().skip_while(|(way, _)| *way != reference).map(|(way, program)| {
            // Every run adds up its own result and fails where that is wrong.
            let run = move || Ok(program.run(*way)?.as_secs_f64() * 1e9 / launches as f64);
            let goal = (*way == promises).then_some(Goal::RatioAtMost(MOST));
            Way { goal, ..Way::new(way.name(), method(*way), run) }
        });
        rows.extend(contest(id).rows(rig, compared.collect())?);
    }
    Ok(rows)
}

fn method(way: prediction::Way) -> &'static str {
    match way {
        prediction::Way::Nothing | prediction::Way::ByHand => "launches, no prediction",
        prediction::Way::Automatic => "AutoPrefetcher beside the launches",
        prediction::Way::Executor => "LaunchExecutor",
        prediction::Way::Predicting => "LaunchExecutor with prediction",
    }
}
