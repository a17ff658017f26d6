//! Pieces between the pools of two devices that are peers: `copy_many`, next to a loop of raw copies, the raw batch call, and a raw copy kernel
//! over a list, which accesses the other device's pool.

use anyhow::Result;
use transload_core::{DeviceId, ListWay, MemoryKind};
use transload_cuda_sys::{Device, Driver, check, ffi};

use super::{
    manager_of,
    pieces::Pieces,
    raw_list::RawList,
    shapes::{by_blocks, timed},
};
use crate::{
    comparison::{Comparison, Fixture, Variant},
    cuda,
    reference::RawQueue,
    row::{Goal, Row},
};

const SHAPES: [(usize, usize); 5] =
    [(16, 4 << 10), (1_000, 4 << 10), (4_096, 32 << 10), (1_000, 64 << 10), (300, 1 << 20)];
/// Bytes up to which the goal of `copy_many` is the best raw program's time and so many ms, for what it does before the launch; and beyond, how
/// often that time.
const GOALS: (u64, f64, f64) = (8 << 20, 0.04, 1.25);

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let &[own, peer] = cuda::pair(fixture.device.ordinal())?.as_slice() else { return Ok(Vec::new()) };
    let devices = [Device::new(own)?, Device::new(peer)?];
    if !(devices[0].can_access_peer(devices[1])? && devices[1].can_access_peer(devices[0])?) {
        return Ok(Vec::new());
    }
    let manager = manager_of(&[own, peer])?;
    let on = |ordinal, bytes| manager.allocate(DeviceId::Cuda(ordinal), MemoryKind::Device, bytes);
    // The first enables access.
    let (src, dst) = (on(own, 4096)?, on(peer, 4096)?);
    manager.copy(&src, &dst).wait()?;
    let mut rows = Vec::new();
    for (count, bytes) in SHAPES {
        let count = fixture.amount(count);
        let pieces =
            Pieces::between((on(own, count * bytes)?, on(peer, count * bytes)?), (count, bytes), true)?;
        let (queue, list) = (RawQueue::new(0)?, RawList::new(fixture, count)?);
        let raw_loop = || {
            for ((to, from), bytes) in pieces.destinations.iter().zip(&pieces.sources).zip(&pieces.sizes) {
                // SAFETY: the pools live on, and nothing else uses them now.
                let code = unsafe { ffi::cuMemcpyAsync(*to, *from, *bytes, queue.raw()) };
                check("cuMemcpyAsync", code)?;
            }
            queue.finish()
        };
        let raw_batch = || {
            // SAFETY: as above.
            unsafe { queue.copy_batch(&pieces.destinations, &pieces.sources, &pieces.sizes) }?;
            queue.finish()
        };
        let many = |way: Option<ListWay>| {
            let copy = manager.copy_many(&pieces.pairs);
            if let Some(way) = way { copy.way(way) } else { copy }.wait()?;
            Ok(())
        };
        let mut variants = vec![
            Variant::new("raw-list", "a raw kernel over a list", timed(|| list.run(&pieces, &queue))),
            Variant::new("raw-loop", "a loop of raw copies", timed(raw_loop)),
        ];
        if Driver::get()?.has(c"cuMemcpyBatchAsync_v2") {
            variants.push(Variant::new("raw-batch", "the raw batch call", timed(raw_batch)));
        }
        let forms = variants.len();
        let (short, over, times) = GOALS;
        let is_short = (count * bytes) as u64 <= short;
        let goal = if is_short { Goal::AtMostOver(over) } else { Goal::RatioAtMost(times) };
        let chosen = Variant::new("copy-many", "copy_many, wait()", timed(|| many(None)));
        let blocks = timed(|| by_blocks(&manager, &pieces, bytes));
        variants.extend([
            chosen.goal(goal),
            Variant::new("blocks", "copy_blocks, wait()", blocks),
            Variant::new(
                "kernel",
                "copy_many by a kernel, wait()",
                timed(|| many(Some(ListWay::CopyKernel))),
            ),
            Variant::new("engine", "copy_many by engines, wait()", timed(|| many(Some(ListWay::CopyEngine)))),
            Variant::new("one-by-one", "copies one by one, wait()", timed(|| many(Some(ListWay::OneByOne)))),
        ]);
        let variants = variants.into_iter().map(|variant| variant.verified_by(&pieces)).collect();
        let comparison = Comparison {
            id: format!("peers-{count}/{bytes}"),
            what: format!("{count} pieces of {bytes} bytes from one device to another, all of them"),
            unit: "ms",
            bytes: (count * bytes) as u64,
            repetitions: fixture.repetitions(30),
        };
        rows.extend(comparison.rows_over_best(forms, fixture.group, fixture.is_simulated(), variants)?);
    }
    drop((src, dst));
    manager.drain()?;
    Ok(rows)
}
