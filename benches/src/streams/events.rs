//! What fences cost beside the events they stand for: marking a point, and one stream waiting for another.

use std::time::Instant;

use anyhow::{Context as _, Result};
use transload_core::MemoryKind;
use transload_streams::CudaStream;

use super::{
    Fixture,
    comparison::{Comparison, Variant},
    cudarc_baseline,
    pairs::Pairs,
};
use crate::{
    reference::{RawEvent, RawQueue},
    row::Row,
};

const MANY: usize = 64;
const BYTES: usize = 4096;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let mut rows = marking(fixture)?;
    rows.extend(handing_over(fixture)?);
    Ok(rows)
}

/// The point behind what is enqueued: `MANY` in a row.
fn marking(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let queue = RawQueue::new(0)?;
    let events = (0..MANY).map(|_| RawEvent::ordering()).collect::<Result<Vec<_>>>()?;
    let stream = CudaStream::new(&fixture.device)?;
    let theirs = fixture.cudarc.as_ref().map(cudarc_baseline::CudarcBaseline::stream).transpose()?;
    let mut fences = Vec::with_capacity(MANY);
    let mut variants = vec![
        Variant::new("raw", "raw driver, cuEventRecord of events made before", || {
            let begun = Instant::now();
            events.iter().try_for_each(|event| queue.record(event))?;
            let took = each(begun);
            queue.finish()?;
            Ok(took)
        }),
        Variant::new("fence", "CudaStream::fence()", || {
            let begun = Instant::now();
            for _ in 0..MANY {
                fences.push(stream.fence()?);
            }
            let took = each(begun);
            stream.synchronize()?;
            fences.clear();
            Ok(took)
        }),
    ];
    if let Some(theirs) = &theirs {
        let mut events = Vec::with_capacity(MANY);
        variants.push(Variant::new(
            "cudarc",
            &format!("{}, record_event()", cudarc_baseline::NAME),
            move || {
                let begun = Instant::now();
                for _ in 0..MANY {
                    events.push(theirs.record_event(None)?);
                }
                let took = each(begun);
                theirs.synchronize()?;
                events.clear();
                Ok(took)
            },
        ));
    }
    let comparison = Comparison {
        id: "fence".to_owned(),
        what: format!("marking a point in a stream, {MANY} in a row"),
        unit: "ns",
        bytes: 0,
        repetitions: fixture.repetitions(300),
    };
    comparison.rows(fixture, variants)
}

/// An upload on one stream, the download of the same bytes on another one behind it, both waited for.
fn handing_over(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let pairs = Pairs::new(fixture, 1, 1, BYTES)?;
    let pair = pairs.list.first().context("no pair")?;
    let back = fixture.memory.allocate(MemoryKind::Pinned, BYTES)?;
    let landing = back.host_address().context("pinned memory without a host address")?;
    let (up, down, event) = (RawQueue::new(0)?, RawQueue::new(0)?, RawEvent::ordering()?);
    let (first, second) = (CudaStream::new(&fixture.device)?, CudaStream::new(&fixture.device)?);
    let variants = vec![
        Variant::new("raw", "raw driver, cuEventRecord and cuStreamWaitEvent", || {
            let begun = Instant::now();
            // SAFETY: the buffers live on, and no other thread uses them now.
            unsafe { up.copy_up(pair.dst, pair.src, BYTES) }?;
            up.record(&event)?;
            down.wait(&event)?;
            // SAFETY: as above; the event orders the two.
            unsafe { down.copy_down(landing.as_ptr().cast(), pair.dst, BYTES) }?;
            down.finish()?;
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
        .verified_by(&pairs),
        Variant::new("hazard", "CudaStream, ordered by the buffer itself", || {
            let begun = Instant::now();
            drop(first.copy_from_host_async(&pair.host, &pair.device));
            second.copy_to_host_async(&pair.device, &back).wait()?;
            Ok(begun.elapsed().as_secs_f64() * 1e6)
        })
        .verified_by(&pairs),
    ];
    let comparison = Comparison {
        id: format!("hand-over/{BYTES}"),
        what: format!("{BYTES} bytes up on one stream and down on another behind it"),
        unit: "us",
        bytes: BYTES as u64,
        repetitions: fixture.repetitions(300),
    };
    comparison.rows(fixture, variants)
}

fn each(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e9 / MANY as f64
}
