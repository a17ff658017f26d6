//! Eight threads that upload and wait, each on a lease of its own.

use anyhow::{Context as _, Result};
use transload_core::{StreamPriority, WorkloadType};
use transload_streams::{AdvancedStreamPool, AllocationStrategy};

use super::{
    Fixture,
    comparison::Verify as _,
    concurrent::{Round, run_concurrently},
    pairs::Pairs,
};
use crate::{
    reference::RawQueue,
    row::{Row, Summary},
    rows::is_verified,
};

const THREADS: usize = 8;
const BYTES: usize = 4096;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let uploads = fixture.amount(500);
    // Each side has memory of its own, poisoned now and looked at in the end.
    let sides =
        [Pairs::new(fixture, THREADS, THREADS, BYTES)?, Pairs::new(fixture, THREADS, THREADS, BYTES)?];
    sides.iter().try_for_each(|pairs| pairs.poison())?;
    let [theirs, ours] = &sides;
    let strategy = AllocationStrategy::LoadBalanced;
    let pool =
        &AdvancedStreamPool::builder(&fixture.device).strategy(strategy).streams(1..=THREADS).build()?;
    let make = |thread: usize| -> Result<Vec<Round<'_>>> {
        fixture.bind()?;
        let (queue, stream) = (RawQueue::new(0)?, pool.lease(StreamPriority::Normal, WorkloadType::Memory)?);
        let raw = theirs.list.get(thread).context("no pair")?;
        let pair = ours.list.get(thread).context("no pair")?;
        Ok(vec![
            Box::new(move || {
                (0..uploads).try_for_each(|_| {
                    // SAFETY: the pair lives on, and is this thread's.
                    unsafe { queue.copy_up(raw.dst, raw.src, BYTES) }?;
                    queue.finish()
                })
            }),
            Box::new(move || {
                (0..uploads).try_for_each(|_| {
                    stream.copy_from_host_async(&pair.host, &pair.device).wait()?;
                    Ok(())
                })
            }),
        ])
    };
    let seconds = run_concurrently(THREADS, 2, fixture.repetitions(30), make)?;
    let verified = sides.iter().all(|pairs| is_verified(pairs.check()));
    let rates: Vec<Summary> = seconds.iter().map(|seconds| rates(*seconds, THREADS * uploads)).collect();
    let [raw, own] = *rates else { return Ok(Vec::new()) };
    let row = Row::new(
        format!("streams/threads-{THREADS}/{BYTES}/wait"),
        format!("streams: pinned uploads of {BYTES} bytes by {THREADS} threads, each on a lease of its own"),
        "leases, wait()",
        BYTES as u64,
        "uploads/s",
        own,
    );
    let row = row.against("raw driver, 8 threads on 8 streams", raw);
    Ok(vec![row.obtained(fixture.is_simulated(), verified)])
}

/// Rates of so many in some seconds: what falls where those rise.
pub(super) fn rates(seconds: Summary, many: usize) -> Summary {
    let rate = |seconds: f64| many as f64 / seconds.max(1e-9);
    Summary { p10: rate(seconds.p90), p50: rate(seconds.p50), p90: rate(seconds.p10) }
}
