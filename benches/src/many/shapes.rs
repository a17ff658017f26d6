//! The same pieces by every method.

use std::{os::raw::c_void, slice, time::Instant};

use anyhow::Result;
use transload_core::{DeviceId, MemoryKind, Operation, StreamPriority, Timing, submit};
use transload_cuda_sys::Driver;
use transload_streams::{CudaGraph, CudaStream};
use transload_transfer::{CopyManyBuilder, CopyManyTransfer, CrossBackendTransferManager};

use super::{
    Fixture,
    comparison::{Comparison, Variant},
    pieces::Pieces,
    raw_gather::RawGather,
    raw_list::RawList,
};
use crate::{
    reference::RawQueue,
    row::{Goal, Row},
};

/// Those of pinned memory.
pub(super) fn rows(
    fixture: &Fixture<'_>,
    manager: &CrossBackendTransferManager,
    (count, bytes): (usize, usize),
    up: bool,
    goal: Option<f64>,
) -> Result<Vec<Row>> {
    let pinned = fixture.memory.allocate(MemoryKind::Pinned, count * bytes)?;
    let pieces = Pieces::new(fixture, pinned, (count, bytes), up)?;
    let (queue, stream) = (RawQueue::new(0)?, CudaStream::new(&fixture.device)?);
    let list = RawList::new(fixture, count)?;
    let by = |operation: Operation<'_>| {
        submit(&stream, &operation, Timing::Off)?.wait()?;
        Ok(())
    };
    let batch = || by(Operation::CopyBatch { pairs: &pieces.pairs });
    let in_place = || by(Operation::CopyBatchInPlace { pairs: &pieces.pairs });
    let operation = Operation::CopyBatchInPlace { pairs: &pieces.pairs };
    let graph = CudaGraph::record(&fixture.device, StreamPriority::Normal, &[operation])?;
    let recorded = || {
        graph.launch(&stream)?.wait()?;
        Ok(())
    };
    let blocks_recorded = blocks(manager, &pieces, bytes)?.record()?;
    let by_engines = (count <= RECORDED).then(|| manager.copy_many(&pieces.pairs).record()).transpose()?;
    let replayed = || {
        blocks_recorded.replay().wait()?;
        Ok(())
    };
    let mut variants = vec![
        Variant::new("loop", "a loop of raw copies", timed(|| raw_loop(&pieces, &queue, up))),
        Variant::new("raw-list", "a raw kernel over a list", timed(|| list.run(&pieces, &queue))),
    ];
    if Driver::get()?.has(c"cuMemcpyBatchAsync_v2") {
        let raw = || raw_batch(&pieces, &queue);
        variants.push(Variant::new("raw-batch", "the raw batch call", timed(raw)));
    }
    let forms = variants.len();
    variants.push(Variant::new("batch", "CopyBatch, wait()", timed(batch)));
    variants.push(Variant::new("in-place", "CopyBatchInPlace, wait()", timed(in_place)));
    variants.push(Variant::new("recorded", "a recorded CopyBatchInPlace, wait()", timed(recorded)));
    let by_index = || {
        blocks(manager, &pieces, bytes)?.wait()?;
        Ok(())
    };
    let of_blocks = blocks_goal((count, bytes)).filter(|_| up);
    variants.push(with_goal(
        Variant::new("blocks", "copy_blocks, exclusive(), wait()", timed(by_index)),
        of_blocks,
    ));
    variants.push(with_goal(
        Variant::new(
            "blocks-recorded",
            "copy_blocks, exclusive(), record(): replay().wait()",
            timed(replayed),
        ),
        of_blocks,
    ));
    variants.push(Variant::new("copy-many", "copy_many, wait()", timed(|| many(manager, &pieces, false))));
    if let Some(recorded) = &by_engines {
        let waited = || {
            recorded.replay().wait()?;
            Ok(())
        };
        let replay = submitting(|| recorded.replay());
        let submit = submitting(|| manager.copy_many(&pieces.pairs).submit());
        variants.extend([
            Variant::new("many-recorded", "copy_many, record(): replay().wait()", timed(waited)),
            Variant::new("many-recorded-submitting", "the same, replay() alone", replay),
            Variant::new("copy-many-submitting", "copy_many, submit() alone", submit),
        ]);
    }
    let exclusive = || many(manager, &pieces, true);
    variants
        .push(with_goal(Variant::new("exclusive", "copy_many, exclusive(), wait()", timed(exclusive)), goal));
    let variants = variants.into_iter().map(|variant| variant.verified_by(&pieces)).collect();
    let comparison = comparison(fixture, "", (count, bytes), up);
    comparison.rows_over_best(forms, fixture.group, fixture.is_simulated(), variants)
}

/// Most pieces of which copies by engines are recorded.
const RECORDED: usize = 1_000;

/// Returns the goal in ms for `copy_blocks`, recorded or not.
fn blocks_goal(shape: (usize, usize)) -> Option<f64> {
    match shape {
        (1_000, 4_096) => Some(0.11),
        (10_000, 4_096) => Some(0.95),
        _ => None,
    }
}

/// Those of pageable memory.
pub(super) fn pageable_rows(
    fixture: &Fixture<'_>,
    manager: &CrossBackendTransferManager,
    (count, bytes): (usize, usize),
    up: bool,
    goal: Option<f64>,
) -> Result<Vec<Row>> {
    let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, count * bytes)?;
    let pieces = Pieces::new(fixture, host, (count, bytes), up)?;
    let one_by_one = || {
        let all: Vec<_> = pieces.pairs.iter().map(|(src, dst)| manager.copy(src, dst).submit()).collect();
        all.into_iter().try_for_each(|transfer| transfer.wait().map(drop))?;
        Ok(())
    };
    let exclusive = || many(manager, &pieces, true);
    let gather = RawGather::new(fixture, &pieces, up)?;
    let variants = vec![
        Variant::new("raw-gather", "threads and raw kernels over lists", timed(|| gather.run())),
        Variant::new("copies", "copies, all submitted, then waited for", timed(one_by_one)),
        Variant::new("copy-many", "copy_many, wait()", timed(|| many(manager, &pieces, false))),
        with_goal(Variant::new("exclusive", "copy_many, exclusive(), wait()", timed(exclusive)), goal),
    ];
    let variants = variants.into_iter().map(|variant| variant.verified_by(&pieces)).collect();
    comparison(fixture, "pageable-", (count, bytes), up).rows(fixture, variants)
}

fn comparison(fixture: &Fixture<'_>, kind: &str, (count, bytes): (usize, usize), up: bool) -> Comparison {
    let direction = if up { "up" } else { "down" };
    Comparison {
        id: format!("{kind}{direction}-{count}/{bytes}"),
        what: format!("{count} {kind}pieces of {bytes} bytes {direction}, all of them"),
        unit: "ms",
        bytes: (count * bytes) as u64,
        repetitions: fixture.repetitions(30),
    }
}

fn with_goal<'a>(variant: Variant<'a>, goal: Option<f64>) -> Variant<'a> {
    match goal {
        Some(most) => variant.goal(Goal::AtMost(most)),
        None => variant,
    }
}

/// Copies by index, beside others.
pub(super) fn by_blocks(manager: &CrossBackendTransferManager, pieces: &Pieces, bytes: usize) -> Result<()> {
    let ((source, from), (destination, to)) = (&pieces.from, &pieces.to);
    let (source, destination) = (slice::from_ref(source), slice::from_ref(destination));
    manager.copy_blocks((source, from), (destination, to), bytes)?.wait()?;
    Ok(())
}

/// Copies by index.
fn blocks<'a>(
    manager: &'a CrossBackendTransferManager,
    pieces: &Pieces,
    bytes: usize,
) -> Result<CopyManyBuilder<'a>> {
    let ((source, from), (destination, to)) = (&pieces.from, &pieces.to);
    let (source, destination) = (slice::from_ref(source), slice::from_ref(destination));
    Ok(manager.copy_blocks((source, from), (destination, to), bytes)?.exclusive())
}

/// By the public interface.
fn many(manager: &CrossBackendTransferManager, pieces: &Pieces, exclusive: bool) -> Result<()> {
    let copy = manager.copy_many(&pieces.pairs);
    if exclusive { copy.exclusive() } else { copy }.wait()?;
    Ok(())
}

/// Returns what runs a variant and returns its time in ms.
pub(super) fn timed(run: impl Fn() -> Result<()>) -> impl FnMut() -> Result<f64> {
    move || {
        let begun = Instant::now();
        run()?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }
}

/// Returns what submits copies and waits for them, and returns the time of the first in ms.
fn submitting(submit: impl Fn() -> CopyManyTransfer) -> impl FnMut() -> Result<f64> {
    move || {
        let begun = Instant::now();
        let transfer = submit();
        let took = begun.elapsed();
        transfer.wait()?;
        Ok(took.as_secs_f64() * 1e3)
    }
}

fn raw_loop(pieces: &Pieces, queue: &RawQueue, up: bool) -> Result<()> {
    for ((to, from), bytes) in pieces.destinations.iter().zip(&pieces.sources).zip(&pieces.sizes) {
        let (near, far) = if up { (*from, *to) } else { (*to, *from) };
        let near: *mut c_void = std::ptr::with_exposed_provenance_mut(near as usize);
        // SAFETY: the pools live on, and nothing else uses them now.
        unsafe {
            if up { queue.copy_up(far, near, *bytes) } else { queue.copy_down(near, far, *bytes) }?;
        }
    }
    queue.finish()
}

/// The call of CUDA 13.0.
fn raw_batch(pieces: &Pieces, queue: &RawQueue) -> Result<()> {
    // SAFETY: the pools live on, and nothing else uses them now.
    unsafe { queue.copy_batch(&pieces.destinations, &pieces.sources, &pieces.sizes) }?;
    queue.finish()
}
