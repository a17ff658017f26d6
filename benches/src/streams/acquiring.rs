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
    Rig,
    comparison::{Contest, Way},
    concurrent::{Round, together},
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
const BY_HAND: &str = "the next of 8 raw streams by an atomic add";

/// What a program does that has its own streams and no more than a counter.
struct ByHand {
    queues: Vec<Arc<RawQueue>>,
    turn: AtomicUsize,
}

impl ByHand {
    #[inline]
    fn next(&self) -> Option<&Arc<RawQueue>> {
        self.queues.get(self.turn.fetch_add(1, Ordering::Relaxed) % STREAMS)
    }
}

pub(super) fn rows(rig: &Rig<'_>) -> Result<Vec<Row>> {
    let many = rig.amount(2000);
    let queues = (0..STREAMS).map(|_| RawQueue::new(0).map(Arc::new)).collect::<Result<_>>()?;
    let by_hand = ByHand { queues, turn: AtomicUsize::new(0) };
    let pools = AllocationStrategy::ALL
        .iter()
        .map(|strategy| Ok((*strategy, grown(rig, *strategy)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut rows = alone(rig, &by_hand, &pools, many)?;
    rows.extend(crowded(rig, &by_hand, &pools, 10 * many)?);
    Ok(rows)
}

/// A pool whose streams are all there.
fn grown(rig: &Rig<'_>, strategy: AllocationStrategy) -> Result<AdvancedStreamPool> {
    let pool =
        AdvancedStreamPool::builder(&rig.device).strategy(strategy).streams(STREAMS..=STREAMS).build()?;
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
    rig: &Rig<'_>,
    by_hand: &ByHand,
    pools: &[(AllocationStrategy, AdvancedStreamPool)],
    many: usize,
) -> Result<Vec<Row>> {
    let mut ways = vec![Way::new("raw", BY_HAND, || {
        timed(many, || {
            black_box(by_hand.next());
            Ok(())
        })
    })];
    for (strategy, pool) in pools {
        let name = format!("{strategy:?}").to_lowercase();
        let mut way =
            Way::new(&name, &format!("AdvancedStreamPool, {strategy}"), || timed(many, || take(pool)));
        way.goal = goal(*strategy);
        ways.push(way);
    }
    if let Some(rival) = &rig.rival {
        let run = || timed(50, || rival.stream().map(|stream| drop(black_box(stream))));
        ways.push(Way::new(
            "cudarc",
            &format!("{}, new_stream(): it has no pool", cudarc_baseline::NAME),
            run,
        ));
    }
    let contest = Contest {
        id: "acquire/threads-1".to_owned(),
        what: "leasing a stream and giving it back, 1 thread".to_owned(),
        unit: "ns",
        bytes: 0,
        repetitions: rig.repetitions(200),
    };
    contest.rows(rig, ways)
}

fn timed(many: usize, mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    for _ in 0..many {
        once()?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e9 / many as f64)
}

/// In eight threads on one pool; what a lease takes each of them.
fn crowded(
    rig: &Rig<'_>,
    by_hand: &ByHand,
    pools: &[(AllocationStrategy, AdvancedStreamPool)],
    many: usize,
) -> Result<Vec<Row>> {
    let make = |_thread: usize| -> Result<Vec<Round<'_>>> {
        rig.bind()?;
        let mut ways: Vec<Round<'_>> = vec![Box::new(|| {
            for _ in 0..many {
                black_box(by_hand.next());
            }
            Ok(())
        })];
        for (_, pool) in pools {
            ways.push(Box::new(move || (0..many).try_for_each(|_| take(pool))));
        }
        Ok(ways)
    };
    let seconds = together(THREADS, 1 + pools.len(), rig.repetitions(60), make)?;
    let each = |summary: &Summary| {
        let value = |seconds: f64| seconds * 1e9 / many as f64;
        Summary { p10: value(summary.p10), p50: value(summary.p50), p90: value(summary.p90) }
    };
    let reference = each(seconds.first().context("no way was measured")?);
    let rows = pools.iter().zip(seconds.iter().skip(1)).map(|((strategy, _), seconds)| {
        let id = format!("acquire/threads-{THREADS}/{}", format!("{strategy:?}").to_lowercase());
        let what = format!("leasing a stream and giving it back, {THREADS} threads, for each of them");
        let method = format!("AdvancedStreamPool, {strategy}");
        rig.row(&id, &what, &method, "ns", each(seconds)).against(BY_HAND, reference)
    });
    Ok(rows.collect())
}
