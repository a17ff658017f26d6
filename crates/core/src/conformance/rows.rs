//! Promises about copies of many pieces: rows and batches.

use super::{
    CheckResult, Failure, Verdict,
    context::{TestContext, TestMemory, submit_and_wait},
    rng::TestRng,
};
use crate::{Operation, Pitched, RawBuffer};

pub(super) fn pitched(context: &TestContext<'_>) -> CheckResult {
    let queue = context.queue()?;
    let mut rng = context.rng("pitched");
    let mut any = false;
    for (from, to) in context.paths() {
        for (width, height) in [(1, 1), (1, 40), (77, 5), (4096, 33), (context.size(3_000_000) / 100, 100)] {
            let [src_gap, dst_gap] = [0, 1].map(|_| rng.below(2) * rng.below(50));
            let rows = Pitched::new(width, height, width + src_gap, width + dst_gap);
            // The last row need not be followed by its gap.
            let end = |pitch: usize| (height - 1) * pitch + width;
            // Planes of the source may overlap.
            let planes = rng.between(1, 3);
            let rows = rows.planes(
                planes,
                rng.below(end(rows.src_pitch)),
                end(rows.dst_pitch) + rng.below(2) * rng.below(50),
            );
            let there = rng.bytes((planes - 1) * rows.src_plane + end(rows.src_pitch));
            let mut here = rng.bytes((planes - 1) * rows.dst_plane + end(rows.dst_pitch) + 13);
            let (src, dst) = (context.buffer_of(from, &there)?, context.buffer_of(to, &here)?);
            if submit_and_wait(&queue, &Operation::CopyPitched { src: &src, dst: &dst, rows })?.is_some() {
                any = true;
                for (plane, row) in (0..planes).flat_map(|plane| (0..height).map(move |row| (plane, row))) {
                    let at = plane * rows.dst_plane + row * rows.dst_pitch;
                    let from = plane * rows.src_plane + row * rows.src_pitch;
                    here[at..at + width].copy_from_slice(&there[from..from + width]);
                }
            }
            context.expect(&dst, &here, &format!("{rows:?} {} → {}", from.place, to.place))?;
        }
    }
    Ok(Verdict::passed_if(any, "the queues copy no rows"))
}

pub(super) fn batches(context: &TestContext<'_>) -> CheckResult {
    let queue = context.queue()?;
    let mut rng = context.rng("batches");
    let mut any = false;
    for (from, to) in context.paths() {
        for (count, most, unit) in
            [(1, 500, 1), (7, 3000, 1), (100, 999, 1), (100, 999, 4), (3, context.size(2_200_000), 1)]
        {
            any |= one_batch(context, &mut rng, (from, to), (count, most, unit), |pairs| {
                Ok(submit_and_wait(&queue, &Operation::CopyBatch { pairs })?.is_some())
            })?;
        }
    }
    Ok(Verdict::passed_if(any, "the queues copy no batches"))
}

/// One batch of `count` pairs of up to `most` bytes, and the bytes around them, all multiples of `unit`. `copy` returns whether the
/// queue supports it.
pub(super) fn one_batch(
    context: &TestContext<'_>,
    rng: &mut TestRng,
    (from, to): (TestMemory, TestMemory),
    (count, most, unit): (usize, usize, usize),
    copy: impl FnOnce(&[(RawBuffer, RawBuffer)]) -> Result<bool, Failure>,
) -> Result<bool, Failure> {
    let sizes: Vec<usize> = (0..count).map(|_| rng.between(1, most / unit) * unit).collect();
    let total: usize = sizes.iter().sum();
    let there = rng.bytes(total);
    let mut here = rng.bytes(total + count * unit);
    let (src, dst) = (context.buffer_of(from, &there)?, context.buffer_of(to, &here)?);
    let mut pairs: Vec<(RawBuffer, RawBuffer)> = Vec::new();
    let mut done = here.clone();
    // Forwards, so that some are neighbours of the one before, or in reverse order with a byte between.
    let is_reverse = rng.below(2) == 0;
    let (mut read, mut write) = (if is_reverse { total } else { 0 }, 0);
    for bytes in sizes {
        read -= if is_reverse { bytes } else { 0 };
        pairs.push((src.slice(read..read + bytes)?, dst.slice(write..write + bytes)?));
        done[write..write + bytes].copy_from_slice(&there[read..read + bytes]);
        write += bytes + unit * if is_reverse { 1 } else { rng.below(2) };
        read += if is_reverse { 0 } else { bytes };
    }
    let is_copied = copy(&pairs)?;
    if is_copied {
        here = done;
    }
    context.expect(&dst, &here, &format!("{count} pairs {} → {}", from.place, to.place))?;
    Ok(is_copied)
}
