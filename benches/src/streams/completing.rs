//! What it costs to learn that a small copy is done: one copy, from before it is enqueued until its end is seen.

use std::time::Instant;

use anyhow::{Context as _, Result};
use transload_streams::CudaStream;

use super::{
    Fixture,
    comparison::{Comparison, Variant},
    cudarc_baseline::{self, CudarcPairs},
    pairs::Pairs,
};
use crate::{
    reference::RawQueue,
    row::{Goal, Row},
};

const BYTES: usize = 4096;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let pairs = Pairs::new(fixture, 1, 1, BYTES)?;
    let pair = pairs.list.first().context("no pair")?;
    let queue = RawQueue::new(0)?;
    let stream = CudaStream::new(&fixture.device)?;
    let theirs = fixture.cudarc.as_ref().map(|cudarc| CudarcPairs::new(cudarc, 1, BYTES)).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let mut variants = vec![
        Variant::new("raw", "raw driver, cuStreamSynchronize", || {
            let begun = Instant::now();
            // SAFETY: the pair lives on, and no other thread uses it now.
            unsafe { queue.copy_up(pair.dst, pair.src, BYTES) }?;
            queue.finish()?;
            Ok(us(begun))
        })
        .verified_by(&pairs),
        Variant::new("wait", "CudaStream, wait()", || {
            let begun = Instant::now();
            stream.copy_from_host_async(&pair.host, &pair.device).wait()?;
            Ok(us(begun))
        })
        .goal(Goal::AtMostOver(0.5))
        .verified_by(&pairs),
        Variant::new("await", "CudaStream, .await by pollster", || {
            let begun = Instant::now();
            pollster::block_on(stream.copy_from_host_async(&pair.host, &pair.device))?;
            Ok(us(begun))
        })
        .goal(Goal::AtMostOver(5.0))
        .verified_by(&pairs),
        Variant::new("await-tokio", "CudaStream, .await on tokio's current thread", || {
            let begun = Instant::now();
            runtime.block_on(async { stream.copy_from_host_async(&pair.host, &pair.device).await })?;
            Ok(us(begun))
        })
        .goal(Goal::AtMostOver(5.0))
        .verified_by(&pairs),
    ];
    if let Some(theirs) = &theirs {
        let run = || {
            let begun = Instant::now();
            theirs.enqueue()?;
            theirs.finish()?;
            Ok(us(begun))
        };
        variants.push(
            Variant::new("cudarc", &format!("{}, synchronize()", cudarc_baseline::NAME), run)
                .verified_by(theirs),
        );
    }
    let comparison = Comparison {
        id: format!("complete-up/{BYTES}"),
        what: format!("a pinned upload of {BYTES} bytes and its completion"),
        unit: "us",
        bytes: BYTES as u64,
        repetitions: fixture.repetitions(1000),
    };
    comparison.rows(fixture, variants)
}

fn us(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e6
}
