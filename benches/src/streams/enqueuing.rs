//! What it costs to enqueue a small copy: 64 of them without waiting, the queue drained outside of the timed part.

use std::time::Instant;

use anyhow::Result;
use transload_streams::CudaStream;

use super::{
    Rig,
    comparison::{Contest, Way},
    cudarc_baseline::{self, RivalPairs},
    pairs::Pairs,
};
use crate::{
    reference::RawQueue,
    row::{Goal, Row},
};

/// Copies of one measurement: few enough that no queue is full.
const MANY: usize = 64;
/// Nanoseconds over the raw call.
const MOST_OVER: f64 = 100.0;

pub(super) fn rows(rig: &Rig<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for bytes in [4096, 64] {
        let pairs = Pairs::new(rig, MANY, MANY, bytes)?;
        let queue = RawQueue::new(0)?;
        let stream = CudaStream::new(&rig.device)?;
        let theirs = rig.rival.as_ref().map(|rival| RivalPairs::new(rival, MANY, bytes)).transpose()?;
        let mut ways = vec![
            Way::new("raw", "raw driver", || {
                let begun = Instant::now();
                for pair in &pairs.list {
                    // SAFETY: the pairs live on, and nobody else uses them now.
                    unsafe { queue.copy_up(pair.dst, pair.src, bytes) }?;
                }
                let took = each(begun);
                queue.finish()?;
                Ok(took)
            })
            .proven(&pairs),
            Way::new("copy_from_host_async", "CudaStream, safe", || {
                let begun = Instant::now();
                for pair in &pairs.list {
                    drop(stream.copy_from_host_async(&pair.host, &pair.device));
                }
                let took = each(begun);
                stream.synchronize()?;
                Ok(took)
            })
            .goal(Goal::AtMostOver(MOST_OVER))
            .proven(&pairs),
            Way::new("copy_raw_async", "CudaStream, unsafe", || {
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
            .proven(&pairs),
        ];
        if let Some(theirs) = &theirs {
            let run = || {
                let begun = Instant::now();
                theirs.enqueue()?;
                let took = each(begun);
                theirs.finish()?;
                Ok(took)
            };
            ways.push(Way::new("cudarc", cudarc_baseline::NAME, run).proven(theirs));
        }
        let contest = Contest {
            id: format!("enqueue-up/{bytes}"),
            what: format!("enqueuing a pinned upload of {bytes} bytes, {MANY} in a row"),
            unit: "ns",
            bytes: bytes as u64,
            repetitions: rig.repetitions(300),
        };
        rows.extend(contest.rows(rig, ways)?);
    }
    Ok(rows)
}

fn each(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e9 / MANY as f64
}
