//! Many small copies as one graph, beside as many enqueued one by one, until all are done.

use std::time::Instant;

use anyhow::Result;
use transload_core::{Operation, StreamPriority};
use transload_streams::{CudaGraph, CudaStream};

use super::{
    Fixture,
    comparison::{Comparison, Variant},
    pairs::Pairs,
};
use crate::{
    reference::{RawEvent, RawGraph, RawQueue},
    row::Row,
};

const MANY: usize = 64;
const BYTES: usize = 4096;
/// Rows of a graph that run side by side, as the library's has them.
const WIDTH: usize = 4;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let pairs = Pairs::new(fixture, MANY, MANY, BYTES)?;
    let (queue, stream) = (RawQueue::new(0)?, CudaStream::new(&fixture.device)?);
    let enqueue = || {
        pairs.list.iter().try_for_each(|pair| {
            // SAFETY: the pairs live on, and no other thread uses them now.
            unsafe { queue.copy_up(pair.dst, pair.src, BYTES) }
        })
    };
    let graph = RawGraph::capture(&queue, enqueue)?;
    let wide = side_by_side(&queue, &pairs)?;
    let copies: Vec<Operation<'_>> =
        pairs.list.iter().map(|pair| Operation::Copy { src: &pair.host, dst: &pair.device }).collect();
    let recorded = CudaGraph::record(&fixture.device, StreamPriority::Normal, &copies)?;
    let us = |begun: Instant| begun.elapsed().as_secs_f64() * 1e6;
    let variants = vec![
        Variant::new("raw", "raw driver, one graph of copies in a row", || {
            let begun = Instant::now();
            // SAFETY: as above.
            unsafe { graph.launch(&queue) }?;
            queue.finish()?;
            Ok(us(begun))
        })
        .verified_by(&pairs),
        Variant::new("raw-side-by-side", "raw driver, one graph of 4 rows side by side", || {
            let begun = Instant::now();
            // SAFETY: as above.
            unsafe { wide.launch(&queue) }?;
            queue.finish()?;
            Ok(us(begun))
        })
        .verified_by(&pairs),
        Variant::new("graph", "CudaGraph, recorded by record()", || {
            let begun = Instant::now();
            recorded.launch(&stream)?;
            stream.synchronize()?;
            Ok(us(begun))
        })
        .verified_by(&pairs),
        Variant::new("raw-enqueued", "raw driver, one by one", || {
            let begun = Instant::now();
            enqueue()?;
            queue.finish()?;
            Ok(us(begun))
        })
        .verified_by(&pairs),
        Variant::new("enqueued", "CudaStream, one by one", || {
            let begun = Instant::now();
            for pair in &pairs.list {
                drop(stream.copy_from_host_async(&pair.host, &pair.device));
            }
            stream.synchronize()?;
            Ok(us(begun))
        })
        .verified_by(&pairs),
    ];
    let comparison = Comparison {
        id: format!("graph/{MANY}x{BYTES}"),
        what: format!("{MANY} pinned uploads of {BYTES} bytes until all are done"),
        unit: "us",
        bytes: BYTES as u64,
        repetitions: fixture.repetitions(300),
    };
    comparison.rows(fixture, variants)
}

/// The same copies captured on four streams that begin and end together.
fn side_by_side(queue: &RawQueue, pairs: &Pairs) -> Result<RawGraph> {
    let others = (1..WIDTH).map(|_| RawQueue::new(0)).collect::<Result<Vec<_>>>()?;
    let (fork, ends) = (RawEvent::ordering()?, others.iter().map(|_| RawEvent::ordering()));
    let ends = ends.collect::<Result<Vec<_>>>()?;
    RawGraph::capture(queue, || {
        queue.record(&fork)?;
        others.iter().try_for_each(|other| other.wait(&fork))?;
        let queues = std::iter::once(queue).chain(&others).cycle();
        for (pair, queue) in pairs.list.iter().zip(queues) {
            // SAFETY: the pairs outlive the graph, and nobody else uses them while it runs.
            unsafe { queue.copy_up(pair.dst, pair.src, BYTES) }?;
        }
        for (other, end) in others.iter().zip(&ends) {
            other.record(end)?;
            queue.wait(end)?;
        }
        Ok(())
    })
}
