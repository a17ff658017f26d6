//! Many small copies as one graph, beside as many enqueued one by one.

use std::time::Instant;

use anyhow::Result;
use transload_streams::CudaStream;

use super::{
    Rig,
    contest::{Contest, Way},
    pairs::Pairs,
};
use crate::{
    reference::{RawGraph, RawQueue},
    row::Row,
};

const MANY: usize = 64;
const BYTES: usize = 4096;

pub(super) fn rows(rig: &Rig<'_>) -> Result<Vec<Row>> {
    let pairs = Pairs::new(rig, MANY, MANY, BYTES)?;
    let (queue, stream) = (RawQueue::new(0)?, CudaStream::new(&rig.device)?);
    let enqueue = || {
        pairs.list.iter().try_for_each(|pair| {
            // SAFETY: the pairs live on, and nobody else uses them now.
            unsafe { queue.copy_up(pair.dst, pair.src, BYTES) }
        })
    };
    let graph = match RawGraph::capture(&queue, enqueue) {
        Ok(graph) => graph,
        // A software driver without graphs.
        Err(_) if rig.is_simulated() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let us = |begun: Instant| begun.elapsed().as_secs_f64() * 1e6;
    let ways = vec![
        Way::new("raw", "raw driver, one graph", || {
            let begun = Instant::now();
            // SAFETY: as above.
            unsafe { graph.launch(&queue) }?;
            queue.finish()?;
            Ok(us(begun))
        })
        .proven(&pairs),
        Way::new("raw-enqueued", "raw driver, one by one", || {
            let begun = Instant::now();
            enqueue()?;
            queue.finish()?;
            Ok(us(begun))
        })
        .proven(&pairs),
        Way::new("enqueued", "CudaStream, one by one", || {
            let begun = Instant::now();
            for pair in &pairs.list {
                drop(stream.copy_from_host_async(&pair.host, &pair.device));
            }
            stream.synchronize()?;
            Ok(us(begun))
        })
        .proven(&pairs),
    ];
    let contest = Contest {
        id: format!("graph/{MANY}x{BYTES}"),
        what: format!("{MANY} pinned uploads of {BYTES} bytes until all are done"),
        unit: "us",
        bytes: BYTES as u64,
        repetitions: rig.repetitions(300),
    };
    contest.rows(rig, ways)
}
