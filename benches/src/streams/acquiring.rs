//! Leasing a stream of the pool and giving it back, by each strategy, in one thread and in eight.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::{Context as _, Result};
use transload_core::{StreamPriority, WorkloadType};
use transload_streams::{AdvancedStreamPool, AllocationStrategy};

use super::{
    Fixture,
    comparison::{Comparison, Variant},
    concurrent::{Round, run_concurrently},
    cudarc_baseline,
};
use crate::{
    reference::RawQueue,
    row::{Goal, Row, Summary},
};

const STREAMS: usize = 8;
const THREADS: usize = 8;
/// Nanoseconds for a lease and its end.
const MOST: f64 = 30.0;
const RAW_STREAMS: &str = "the next of 8 raw streams by an atomic add";

/// What a program does that has its own streams and no more than a counter.
struct RawStreams {
    queues: Vec<Arc<RawQueue>>,
    turn: AtomicUsize,
}

impl RawStreams {
    #[inline]
    fn next(&self) -> Option<&Arc<RawQueue>> {
        self.queues.get(self.turn.fetch_add(1, Ordering::Relaxed) % STREAMS)
    }
}

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let many = fixture.amount(2000);
    let queues = (0..STREAMS).map(|_| RawQueue::new(0).map(Arc::new)).collect::<Result<_>>()?;
    let raw = RawStreams { queues, turn: AtomicUsize::new(0) };
    let pools = AllocationStrategy::ALL
        .iter()
        .map(|strategy| Ok((*strategy, grown(fixture, *strategy)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut rows = alone(fixture, &raw, &pools, many)?;
    rows.extend(eight_threads(fixture, &raw, &pools, 10 * many)?);
    Ok(rows)
}

/// A pool whose streams are all there.
fn grown(fixture: &Fixture<'_>, strategy: AllocationStrategy) -> Result<AdvancedStreamPool> {
    let pool =
        AdvancedStreamPool::builder(&fixture.device).strategy(strategy).streams(STREAMS..=STREAMS).build()?;
    let workloads =
        [WorkloadType::Compute, WorkloadType::Memory, WorkloadType::Mixed, WorkloadType::Coordination];
    let mut leases = Vec::new();
    for workload in workloads {
        for _ in 0..STREAMS {
            leases.push(pool.lease(StreamPriority::Normal, workload)?);
        }
    }
    drop(leases);
    Ok(pool)
}

fn take(pool: &AdvancedStreamPool) -> Result<()> {
    drop(black_box(pool.lease(StreamPriority::Normal, WorkloadType::Memory)?));
    Ok(())
}

fn goal(strategy: AllocationStrategy) -> Option<Goal> {
    let promised = [AllocationStrategy::RoundRobin, AllocationStrategy::default()];
    promised.contains(&strategy).then_some(Goal::AtMost(MOST))
}

/// In one thread, `many` in a row.
fn alone(
    fixture: &Fixture<'_>,
    raw: &RawStreams,
    pools: &[(AllocationStrategy, AdvancedStreamPool)],
    many: usize,
) -> Result<Vec<Row>> {
    let mut variants = vec![Variant::new("raw", RAW_STREAMS, || {
        timed(many, || {
            black_box(raw.next());
            Ok(())
        })
    })];
    for (strategy, pool) in pools {
        let name = format!("{strategy:?}").to_lowercase();
        let mut variant =
            Variant::new(&name, &format!("AdvancedStreamPool, {strategy}"), || timed(many, || take(pool)));
        variant.goal = goal(*strategy);
        variants.push(variant);
    }
    if let Some(cudarc) = &fixture.cudarc {
        let run = || timed(50, || cudarc.stream().map(|stream| drop(black_box(stream))));
        variants.push(Variant::new(
            "cudarc",
            &format!("{}, new_stream(): it has no pool", cudarc_baseline::NAME),
            run,
        ));
    }
    let comparison = Comparison {
        id: "acquire/threads-1".to_owned(),
        what: "leasing a stream and giving it back, 1 thread".to_owned(),
        unit: "ns",
        bytes: 0,
        repetitions: fixture.repetitions(200),
    };
    comparison.rows(fixture, variants)
}

fn timed(many: usize, mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    for _ in 0..many {
        once()?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e9 / many as f64)
}

/// In eight threads on one pool; what a lease takes each of them.
fn eight_threads(
    fixture: &Fixture<'_>,
    raw: &RawStreams,
    pools: &[(AllocationStrategy, AdvancedStreamPool)],
    many: usize,
) -> Result<Vec<Row>> {
    let make = |_thread: usize| -> Result<Vec<Round<'_>>> {
        fixture.bind()?;
        let mut variants: Vec<Round<'_>> = vec![Box::new(|| {
            for _ in 0..many {
                black_box(raw.next());
            }
            Ok(())
        })];
        for (_, pool) in pools {
            variants.push(Box::new(move || (0..many).try_for_each(|_| take(pool))));
        }
        Ok(variants)
    };
    let seconds = run_concurrently(THREADS, 1 + pools.len(), fixture.repetitions(60), make)?;
    let each = |summary: &Summary| {
        let value = |seconds: f64| seconds * 1e9 / many as f64;
        Summary { p10: value(summary.p10), p50: value(summary.p50), p90: value(summary.p90) }
    };
    let reference = each(seconds.first().context("no variant was measured")?);
    let rows = pools.iter().zip(seconds.iter().skip(1)).map(|((strategy, _), seconds)| {
        let id = format!("acquire/threads-{THREADS}/{}", format!("{strategy:?}").to_lowercase());
        let what = format!("leasing a stream and giving it back, {THREADS} threads, for each of them");
        let method = format!("AdvancedStreamPool, {strategy}");
        fixture.row(&id, &what, &method, "ns", each(seconds)).against(RAW_STREAMS, reference)
    });
    Ok(rows.collect())
}
