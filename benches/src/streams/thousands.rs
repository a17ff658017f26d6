//! Thousands of copies awaited at once on a tokio runtime of several threads, beside as many enqueued and waited for by hand.

use std::{sync::Arc, time::Instant};

use anyhow::Result;
use tokio::task::JoinSet;
use transload_streams::CudaStream;

use super::{
    Fixture,
    comparison::{Comparison, Variant},
    pairs::Pairs,
};
use crate::{reference::RawQueue, row::Row};

const BYTES: usize = 4096;
const STREAMS: usize = 4;
const WORKERS: usize = 4;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let count = fixture.amount(4096);
    let pairs = Arc::new(Pairs::new(fixture, count, 256, BYTES)?);
    let queues = (0..STREAMS).map(|_| RawQueue::new(0)).collect::<Result<Vec<_>>>()?;
    let streams: Vec<CudaStream> =
        (0..STREAMS).map(|_| CudaStream::new(&fixture.device)).collect::<Result<_, _>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).build()?;
    let submit = |index: usize, stream: &CudaStream| {
        pairs.list.get(index).map(|pair| stream.copy_from_host_async(&pair.host, &pair.device))
    };
    let variants = vec![
        Variant::new("raw", "raw driver, 1 thread", || {
            let begun = Instant::now();
            for (pair, queue) in pairs.list.iter().zip(queues.iter().cycle()) {
                // SAFETY: the pairs live on, and no other thread uses them now.
                unsafe { queue.copy_up(pair.dst, pair.src, BYTES) }?;
            }
            queues.iter().try_for_each(RawQueue::finish)?;
            Ok(ms(begun))
        })
        .verified_by(&*pairs),
        Variant::new("tasks", "a tokio task for each, which submits and awaits", || {
            let begun = Instant::now();
            runtime.block_on(async {
                let mut tasks = JoinSet::new();
                for (index, stream) in (0..count).zip(streams.iter().cycle()) {
                    let (pairs, stream) = (Arc::clone(&pairs), stream.clone());
                    tasks.spawn(async move {
                        let Some(pair) = pairs.list.get(index) else { return Ok(()) };
                        stream.copy_from_host_async(&pair.host, &pair.device).await.map(|_report| ())
                    });
                }
                joined(tasks).await
            })?;
            Ok(ms(begun))
        })
        .verified_by(&*pairs),
        Variant::new("submitted-first", "submitted by 1 thread, each awaited by a tokio task", || {
            let begun = Instant::now();
            runtime.block_on(async {
                let mut tasks = JoinSet::new();
                for (index, stream) in (0..count).zip(streams.iter().cycle()) {
                    let Some(transfer) = submit(index, stream) else { continue };
                    tasks.spawn(async move { transfer.await.map(|_report| ()) });
                }
                joined(tasks).await
            })?;
            Ok(ms(begun))
        })
        .verified_by(&*pairs),
    ];
    let comparison = Comparison {
        id: format!("await-{count}/{BYTES}"),
        what: format!("{count} uploads of {BYTES} bytes on {STREAMS} streams awaited at once, all of them"),
        unit: "ms",
        bytes: BYTES as u64,
        repetitions: fixture.repetitions(40),
    };
    comparison.rows(fixture, variants)
}

async fn joined(mut tasks: JoinSet<transload_core::Result<()>>) -> Result<()> {
    while let Some(outcome) = tasks.join_next().await {
        outcome??;
    }
    Ok(())
}

fn ms(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}
