//! Whether polling a pool slows down copies on its streams.

use std::time::{Duration, Instant};

use anyhow::Result;
use transload_core::{StreamPriority, WorkloadType};
use transload_streams::AdvancedStreamPool;

use crate::{
    comparison::{Comparison, Fixture, Variant, pairs::Pairs},
    row::{Goal, Row},
};

const BYTES: usize = 4096;
const COPIES: usize = 1000;
/// Copies between synchronisations, which are not timed, so that the launch queue is never full.
const AT_ONCE: usize = 64;
/// Goal: time relative to no polling; the difference is within the noise of so short a measurement.
const MOST: f64 = 1.05;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let copies = fixture.amount(COPIES);
    let at_once = copies.min(AT_ONCE);
    let pairs = Pairs::new(fixture, at_once, at_once, BYTES)?;
    // The first is never polled.
    let pools = [AdvancedStreamPool::new(&fixture.device)?, AdvancedStreamPool::new(&fixture.device)?];
    let run = |pool: &AdvancedStreamPool, polled: bool| -> Result<f64> {
        let stream = pool.lease(StreamPriority::Normal, WorkloadType::Memory)?;
        let mut took = Duration::ZERO;
        for (index, pair) in pairs.list.iter().cycle().take(copies).enumerate() {
            if polled {
                pool.has_ready_streams()?;
            }
            let begun = Instant::now();
            drop(stream.copy_from_host_async(&pair.host, &pair.device));
            took += begun.elapsed();
            if index % at_once == at_once - 1 {
                stream.synchronize()?;
            }
        }
        stream.synchronize()?;
        Ok(took.as_secs_f64() * 1e9 / copies as f64)
    };
    let [quiet, asked] = &pools;
    let variants = vec![
        Variant::new("unpolled", "copies on a lease", || run(quiet, false)).by_library().verified_by(&pairs),
        Variant::new("polled", "copies on a lease, has_ready_streams() before each", || run(asked, true))
            .goal(Goal::RatioAtMost(MOST))
            .verified_by(&pairs),
    ];
    let comparison = Comparison {
        id: format!("polled-pool/{BYTES}"),
        what: format!("enqueuing {copies} pinned uploads of {BYTES} bytes, each copy alone"),
        unit: "ns",
        bytes: BYTES as u64,
        repetitions: fixture.repetitions(60),
    };
    comparison.rows(fixture, variants)
}
