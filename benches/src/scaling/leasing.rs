//! Leasing a stream from a pool with default settings in eight threads.

use std::{
    hint::black_box,
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context as _, Result};
use transload_core::{StreamPriority, WorkloadType};
use transload_streams::AdvancedStreamPool;

use crate::{
    comparison::{
        Fixture,
        concurrent::{Round, run_concurrently},
    },
    row::{Goal, Row, Summary},
};

const THREADS: usize = 8;
/// Nanoseconds for a lease and its end, for each thread.
const MOST: f64 = 60.0;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let many = 10 * fixture.amount(2000);
    let pool = AdvancedStreamPool::new(&fixture.device)?;
    let turn = AtomicUsize::new(0);
    let workloads =
        [WorkloadType::Memory, WorkloadType::Compute, WorkloadType::Mixed, WorkloadType::Coordination];
    let make = |_thread: usize| -> Result<Vec<Round<'_>>> {
        fixture.bind()?;
        let mut variants: Vec<Round<'_>> = vec![Box::new(|| {
            for _ in 0..many {
                black_box(turn.fetch_add(1, Ordering::Relaxed));
            }
            Ok(())
        })];
        for workload in workloads {
            let pool = &pool;
            variants.push(Box::new(move || {
                (0..many).try_for_each(|_| {
                    drop(black_box(pool.lease(StreamPriority::default(), workload)?));
                    Ok(())
                })
            }));
        }
        Ok(variants)
    };
    let seconds = run_concurrently(THREADS, 1 + workloads.len(), fixture.repetitions(60), make)?;
    let each = |summary: &Summary| {
        let value = |seconds: f64| seconds * 1e9 / many as f64;
        Summary { p10: value(summary.p10), p50: value(summary.p50), p90: value(summary.p90) }
    };
    let reference = each(seconds.first().context("no variant was measured")?);
    let rows = workloads.iter().zip(seconds.iter().skip(1)).map(|(workload, seconds)| {
        let id = format!("lease/threads-{THREADS}/{}", format!("{workload:?}").to_lowercase());
        let what = format!("leasing a stream and giving it back, {THREADS} threads, for each of them");
        fixture
            .row(&id, &what, "AdvancedStreamPool::new", "ns", each(seconds))
            .against("an atomic add that all share", reference)
            .with_goal(Some(Goal::AtMost(MOST)))
    });
    Ok(rows.collect())
}
