//! Thousands of small uploads in flight, parts of one allocation. The cost of each must not depend on their number.

use std::{sync::mpsc, thread, time::Instant};

use anyhow::{Context as _, Result};
use transload_core::{MemoryKind, RawBuffer, Transfer};
use transload_streams::CudaStream;

use super::{Library, each};
use crate::{
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    memory::Memory,
    reference::RawQueue,
    row::{Goal, Row, Summary},
};

const BYTES: usize = 4096;
const COUNTS: [usize; 3] = [250, 1000, 8000];
/// Buffers where the pieces are not of one allocation.
const BUFFERS: usize = 64;
/// Goal: time relative to raw calls.
const MOST: f64 = 1.15;
/// Goal: nanoseconds of submission over the raw call.
const MOST_OVER: f64 = 400.0;
/// Goal: time with many in flight relative to the fewest.
const SAME: f64 = 1.2;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let library = Library::new(fixture)?;
    let mut rows = Vec::new();
    let mut first: Option<(Row, Row)> = None;
    for count in COUNTS {
        let (all, submitting) = at(fixture, &library, fixture.amount(count), &mut rows)?;
        if let Some((fewest, fewest_submitting)) = &first {
            rows.push(against_fewest(fixture, &all, fewest));
            rows.push(against_fewest(fixture, &submitting, fewest_submitting));
        } else {
            first = Some((all, submitting));
        }
    }
    library.finish()?;
    Ok(rows)
}

/// Compares a row with the row of the smallest count.
fn against_fewest(fixture: &Fixture<'_>, row: &Row, fewest: &Row) -> Row {
    let summary = |row: &Row| Summary { p10: row.p10, p50: row.p50, p90: row.p90 };
    let (id, path) = (format!("{}/beside-fewest", row.id), row.path.clone());
    Row::new(id, path, &row.method, row.bytes, row.unit, summary(row))
        .against_library("the same with the fewest in flight", summary(fewest))
        .obtained(fixture.is_simulated(), row.verified && fewest.verified)
        .with_goal(Some(Goal::RatioAtMost(SAME)))
}

/// Measures all rows of one count. Returns those of one allocation: until all complete, and submission alone.
fn at(fixture: &Fixture<'_>, library: &Library, count: usize, rows: &mut Vec<Row>) -> Result<(Row, Row)> {
    let (one, many) = (Pieces::new(library, count, 1)?, Pieces::new(library, count, BUFFERS)?);
    let queues = [RawQueue::new(0)?, RawQueue::new(0)?];
    let streams = [CudaStream::new(&fixture.device)?, CudaStream::new(&fixture.device)?];
    let submit = |pieces: &Pieces| -> Vec<Transfer> {
        pieces.list.iter().map(|piece| library.manager.copy(&piece.src, &piece.dst).submit()).collect()
    };
    // Drops handles concurrently with later submissions.
    let (sender, receiver) = mpsc::channel::<DropItem>();
    let dropper = thread::Builder::new()
        .name("bench-dropper".to_owned())
        .spawn(move || receiver.into_iter().for_each(drop))?;
    let all = Comparison {
        id: format!("in-flight-{count}/{BYTES}"),
        what: format!(
            "{count} pinned uploads of {BYTES} bytes in flight together, until all are over, for each"
        ),
        unit: "ns",
        bytes: BYTES as u64,
        repetitions: fixture.repetitions(if count > 1000 { 30 } else { 60 }),
    };
    let raw = |queues: &[RawQueue]| -> Result<f64> {
        let begun = Instant::now();
        enqueue(&one, queues)?;
        queues.iter().try_for_each(RawQueue::finish)?;
        Ok(each(begun, count))
    };
    let awaited = |pieces: &Pieces| -> Result<f64> {
        let begun = Instant::now();
        submit(pieces).into_iter().try_for_each(|transfer| transfer.wait().map(|_report| ()))?;
        Ok(each(begun, count))
    };
    let mut measured = all.rows(
        fixture,
        vec![
            Variant::new("raw", "raw driver, a loop of cuMemcpyHtoDAsync", || raw(&queues[..1]))
                .verified_by(&one),
            Variant::new("one-allocation", "transfers of parts of one allocation", || awaited(&one))
                .goal(Goal::RatioAtMost(MOST))
                .verified_by(&one),
            Variant::new("buffers-64", "transfers of parts of 64 buffers", || awaited(&many))
                .goal(Goal::RatioAtMost(MOST))
                .verified_by(&many),
        ],
    )?;
    let whole = measured.first().context("no row of one allocation")?.clone();
    rows.append(&mut measured);
    let elsewhere = Comparison { id: format!("in-flight-{count}/{BYTES}/dropped-elsewhere"), ..all };
    let variant = "raw driver, a loop of cuMemcpyHtoDAsync that hands an object of a transfer's size to another thread after each";
    rows.extend(elsewhere.rows(
        fixture,
        vec![
            Variant::new("raw", variant, || {
                let begun = Instant::now();
                for piece in &one.list {
                    enqueue_piece(piece, &queues[0])?;
                    sender.send(DropItem::Blank([0; TRANSFER]))?;
                }
                queues[0].finish()?;
                Ok(each(begun, count))
            })
            .verified_by(&one),
            Variant::new("dropped", "transfers dropped at once on another thread", || {
                let begun = Instant::now();
                for piece in &one.list {
                    sender.send(DropItem::Transfer(library.manager.copy(&piece.src, &piece.dst).submit()))?;
                }
                one.dst.iter().try_for_each(RawBuffer::wait_idle)?;
                Ok(each(begun, count))
            })
            .goal(Goal::RatioAtMost(MOST))
            .verified_by(&one),
        ],
    )?);
    let two = Comparison { id: format!("in-flight-{count}/{BYTES}/two-streams"), ..elsewhere };
    rows.extend(two.rows(
        fixture,
        vec![
            Variant::new("raw", "raw driver, two streams in turns", || raw(&queues)).verified_by(&one),
            Variant::new("streams", "two CudaStreams in turns, parts of one allocation", || {
                let begun = Instant::now();
                for (piece, stream) in one.list.iter().zip(streams.iter().cycle()) {
                    drop(stream.copy_from_host_async(&piece.src, &piece.dst));
                }
                streams.iter().try_for_each(CudaStream::synchronize)?;
                Ok(each(begun, count))
            })
            .goal(Goal::RatioAtMost(MOST))
            .verified_by(&one),
        ],
    )?);
    let submitting = Comparison {
        id: format!("in-flight-{count}/{BYTES}/submitting"),
        what: format!("submitting {count} pinned uploads of {BYTES} bytes in a row, each"),
        ..two
    };
    let mut measured = submitting.rows(
        fixture,
        vec![
            Variant::new("raw", "raw driver, a loop of cuMemcpyHtoDAsync", || {
                let begun = Instant::now();
                enqueue(&one, &queues[..1])?;
                let took = each(begun, count);
                queues.iter().try_for_each(RawQueue::finish)?;
                Ok(took)
            })
            .verified_by(&one),
            Variant::new("one-allocation", "transfers of parts of one allocation", || {
                let begun = Instant::now();
                let transfers = submit(&one);
                let took = each(begun, count);
                transfers.into_iter().try_for_each(|transfer| transfer.wait().map(|_report| ()))?;
                Ok(took)
            })
            .goal(Goal::AtMostOver(MOST_OVER))
            .verified_by(&one),
        ],
    )?;
    let alone = measured.first().context("no row of submitting")?.clone();
    rows.append(&mut measured);
    drop(sender);
    let _panicked_in_a_drop = dropper.join();
    Ok((whole, alone))
}

fn enqueue(pieces: &Pieces, queues: &[RawQueue]) -> Result<()> {
    pieces.list.iter().zip(queues.iter().cycle()).try_for_each(|(piece, queue)| enqueue_piece(piece, queue))
}

fn enqueue_piece(piece: &Piece, queue: &RawQueue) -> Result<()> {
    // SAFETY: the pieces live on, and no other thread uses them now.
    unsafe { queue.copy_up(piece.to, piece.from.as_ptr().cast_const().cast(), BYTES) }
}

/// Size of a transfer's handle in words.
const TRANSFER: usize = size_of::<Transfer>() / 8;

/// Sent to the dropping thread: a handle, or as many bytes.
#[expect(dead_code, reason = "they are only dropped")]
enum DropItem {
    Transfer(Transfer),
    Blank([u64; TRANSFER]),
}

/// Source and destination of an upload, with their addresses.
struct Piece {
    src: RawBuffer,
    dst: RawBuffer,
    from: std::ptr::NonNull<u8>,
    to: u64,
}

/// Parts of pinned buffers and as many device buffers, with their contents.
struct Pieces {
    list: Vec<Piece>,
    dst: Vec<RawBuffer>,
    contents: Vec<Vec<u8>>,
}

impl Pieces {
    fn new(library: &Library, count: usize, buffers: usize) -> Result<Self> {
        let each = count.div_ceil(buffers);
        let mut content = Content::new(each * BYTES, 0x51CE + count as u64);
        let mut pieces = Self { list: Vec::with_capacity(count), dst: Vec::new(), contents: Vec::new() };
        let mut left = count;
        while left > 0 {
            let here = left.min(each);
            left -= here;
            let src = library.allocate(MemoryKind::Pinned, here * BYTES)?;
            let dst = library.allocate(MemoryKind::Device, here * BYTES)?;
            let start = content.draw();
            let bytes = content.part(start, here * BYTES).to_vec();
            Memory::Ours(src.clone()).write(0, &bytes)?;
            for index in 0..here {
                let range = index * BYTES..(index + 1) * BYTES;
                let (src, dst) = (src.slice(range.clone())?, dst.slice(range)?);
                let from = src.host_address().context("pinned memory without a host address")?;
                let to = dst.device_address().context("device memory without an address")?;
                pieces.list.push(Piece { src, dst, from, to });
            }
            pieces.dst.push(dst);
            pieces.contents.push(bytes);
        }
        Ok(pieces)
    }
}

impl Verify for Pieces {
    fn poison(&self) -> Result<()> {
        self.dst.iter().try_for_each(|dst| Memory::Ours(dst.clone()).poison())
    }

    fn check(&self) -> Result<()> {
        let each = self.dst.iter().zip(&self.contents);
        each.into_iter().try_for_each(|(dst, content)| Memory::Ours(dst.clone()).compare(0, content))
    }
}
