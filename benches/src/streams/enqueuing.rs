//! What it costs to enqueue a small copy: 64 of them without waiting, the stream is drained outside the timed part.

use std::time::Instant;

use anyhow::Result;
use transload_streams::{CudaStream, MetricsSampling};

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

/// Copies of one measurement: few enough not to fill the launch queue.
const MANY: usize = 64;
/// Size of the copies with metrics.
const TIMED_BYTES: usize = 4096;
/// Nanoseconds over the raw call.
const MOST_OVER: f64 = 100.0;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for bytes in [4096, 64] {
        let pairs = Pairs::new(fixture, MANY, MANY, bytes)?;
        let queue = RawQueue::new(0)?;
        let stream = CudaStream::new(&fixture.device)?;
        let theirs =
            fixture.cudarc.as_ref().map(|cudarc| CudarcPairs::new(cudarc, MANY, bytes)).transpose()?;
        let mut variants = vec![
            Variant::new("raw", "raw driver", || {
                let begun = Instant::now();
                for pair in &pairs.list {
                    // SAFETY: the pairs live on, and no other thread uses them now.
                    unsafe { queue.copy_up(pair.dst, pair.src, bytes) }?;
                }
                let took = each(begun);
                queue.finish()?;
                Ok(took)
            })
            .verified_by(&pairs),
            Variant::new("copy_from_host_async", "CudaStream, safe", || {
                let begun = Instant::now();
                for pair in &pairs.list {
                    drop(stream.copy_from_host_async(&pair.host, &pair.device));
                }
                let took = each(begun);
                stream.synchronize()?;
                Ok(took)
            })
            .goal(Goal::AtMostOver(MOST_OVER))
            .verified_by(&pairs),
            Variant::new("copy_raw_async", "CudaStream, unsafe", || {
                let begun = Instant::now();
                for pair in &pairs.list {
                    // SAFETY: as for the raw driver.
                    unsafe { stream.copy_raw_async(pair.dst, pair.src.expose_provenance() as u64, bytes) }?;
                }
                let took = each(begun);
                stream.synchronize()?;
                Ok(took)
            })
            .goal(Goal::AtMostOver(MOST_OVER))
            .verified_by(&pairs),
        ];
        if let Some(theirs) = &theirs {
            let run = || {
                let begun = Instant::now();
                theirs.enqueue()?;
                let took = each(begun);
                theirs.finish()?;
                Ok(took)
            };
            variants.push(Variant::new("cudarc", cudarc_baseline::NAME, run).verified_by(theirs));
        }
        let comparison = Comparison {
            id: format!("enqueue-up/{bytes}"),
            what: format!("enqueuing a pinned upload of {bytes} bytes, {MANY} in a row"),
            unit: "ns",
            bytes: bytes as u64,
            repetitions: fixture.repetitions(300),
        };
        rows.extend(comparison.rows(fixture, variants)?);
    }
    rows.extend(timed_rows(fixture)?);
    Ok(rows)
}

/// What a stream's metrics cost: the counts, which are always on, are in the reference too.
fn timed_rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let pairs = Pairs::new(fixture, MANY, MANY, TIMED_BYTES)?;
    let samplings = [MetricsSampling::Off, MetricsSampling::USUAL, MetricsSampling::ALL];
    let streams = samplings.map(|sampling| -> Result<CudaStream> {
        let stream = CudaStream::new(&fixture.device)?;
        stream.enable_metrics(sampling);
        Ok(stream)
    });
    let [off, usual, all] = streams;
    let [off, usual, all] = [off?, usual?, all?];
    // The wait is timed: it reads the events' times.
    let run = |stream: &CudaStream| {
        let begun = Instant::now();
        for pair in &pairs.list {
            drop(stream.copy_from_host_async(&pair.host, &pair.device));
        }
        stream.synchronize()?;
        Ok(each(begun))
    };
    let variants = vec![
        Variant::new("off", "a stream that counts", || run(&off)).by_library().verified_by(&pairs),
        Variant::new("one-in-32", "a stream that times one copy in 32", || run(&usual)).verified_by(&pairs),
        Variant::new("all", "a stream that times every copy", || run(&all)).verified_by(&pairs),
    ];
    let comparison = Comparison {
        id: format!("metrics/{TIMED_BYTES}"),
        what: format!("{MANY} pinned uploads of {TIMED_BYTES} bytes in a row and a wait, each copy"),
        unit: "ns",
        bytes: TIMED_BYTES as u64,
        repetitions: fixture.repetitions(300),
    };
    comparison.rows(fixture, variants)
}

fn each(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e9 / MANY as f64
}
