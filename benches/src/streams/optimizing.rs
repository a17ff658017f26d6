//! Two recorded loads that want different answers of `optimize_configuration`, each measured with its own answer and with the
//! other load's.

use anyhow::{Result, ensure};
use transload_streams::{AdvancedStreamPool, AllocationStrategy, WorkloadSplit};

use super::{
    Fixture,
    comparison::{Comparison, Variant},
    workload::{Workload, run_workload},
};
use crate::row::{Goal, Row};

/// Streams of each priority at most: as many as a step of the mixed load has items, so that taking them in turn puts all its
/// kernels on one.
const STREAMS: usize = 4;
/// Replays from which a pool learns.
const LEARNING: usize = 3;

/// A load.
struct Load {
    name: &'static str,
    what: &'static str,
    load: Workload,
}

/// What a pool decided on, and why.
struct Answer {
    strategy: AllocationStrategy,
    split: WorkloadSplit,
    reason: String,
}

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let alike = Load {
        name: "alike",
        what: "kernels of one block that are all alike",
        load: Workload::of_equal_kernels(if fixture.is_simulated() { 24 } else { 96 }),
    };
    let mixed = Load {
        name: "mixed",
        what: "long runs of kernels and short copies",
        load: Workload::of_kernels_and_copies(if fixture.is_simulated() { 16 } else { 32 }),
    };
    let answers = [learnt(fixture, &alike)?, learnt(fixture, &mixed)?];
    let [to_alike, to_mixed] = &answers;
    let differ = (to_alike.strategy, to_alike.split) != (to_mixed.strategy, to_mixed.split);
    ensure!(differ || fixture.is_simulated(), "both loads got the same answer: {}", to_alike.reason);
    let mut rows = judged(fixture, &alike, to_alike, to_mixed)?;
    rows.extend(judged(fixture, &mixed, to_mixed, to_alike)?);
    Ok(rows)
}

fn pool(fixture: &Fixture<'_>) -> Result<AdvancedStreamPool> {
    Ok(AdvancedStreamPool::builder(&fixture.device).streams(1..=STREAMS).build()?)
}

/// What a fresh pool decides on after a load.
fn learnt(fixture: &Fixture<'_>, load: &Load) -> Result<Answer> {
    let pool = pool(fixture)?;
    for _ in 0..LEARNING {
        run_workload(&pool, &fixture.device, &fixture.memory, &load.load)?;
    }
    let decided = pool.optimize_configuration();
    let (strategy, split) = decided.after;
    eprintln!("optimize_configuration, load `{}`: {decided}", load.name);
    Ok(Answer { strategy, split, reason: decided.reason })
}

fn configured(fixture: &Fixture<'_>, answer: &Answer) -> Result<AdvancedStreamPool> {
    let builder = AdvancedStreamPool::builder(&fixture.device).streams(1..=STREAMS);
    Ok(builder.strategy(answer.strategy).split(answer.split).build()?)
}

/// One load with both answers.
fn judged(fixture: &Fixture<'_>, load: &Load, own: &Answer, other: &Answer) -> Result<Vec<Row>> {
    let pools = [configured(fixture, other)?, configured(fixture, own)?];
    let run = |pool: &AdvancedStreamPool| {
        Ok(run_workload(pool, &fixture.device, &fixture.memory, &load.load)?.makespan.as_secs_f64() * 1e6)
    };
    let [with_other, with_own] = &pools;
    let named = |answer: &Answer, whose: &str| format!("{}, {whose}", answer.strategy);
    let variants = vec![
        Variant::new("other", &named(other, "the other load's answer"), || run(with_other)).by_library(),
        Variant::new("own", &named(own, "its own answer"), || run(with_own)).goal(Goal::RatioAtMost(1.0)),
    ];
    let comparison = Comparison {
        id: format!("optimize/{}", load.name),
        what: format!("a load of {}, until all is done by the device's events", load.what),
        unit: "us",
        bytes: 0,
        repetitions: fixture.repetitions(40),
    };
    comparison.rows(fixture, variants)
}
