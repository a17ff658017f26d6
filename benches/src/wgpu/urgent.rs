//! A copy of high priority that comes after long ones of low priority.

use std::time::Instant;

use anyhow::Result;
use transload_core::{MemoryKind, StreamPriority};
use transload_transfer::TransferOptions;

use super::{
    Adapter, MIB,
    checked::{Checked, Target},
};
use crate::{
    comparison::Variant,
    row::{Goal, Row},
};

/// Copies of low priority that are submitted first.
const LONG_ONES: usize = 8;
/// Goal: the time over that of a copy of normal priority, on a GPU.
const OVER_NORMAL: f64 = 0.05;

pub(super) fn rows(adapter: &Adapter<'_>) -> Result<Vec<Row>> {
    let content = &adapter.random(MIB);
    let (src, dst) =
        (&adapter.filled(MemoryKind::Pinned, content)?, &adapter.allocate(MemoryKind::Device, MIB)?);
    let long = adapter.large();
    let (from, to) =
        (&adapter.allocate(MemoryKind::Pinned, long)?, &adapter.allocate(MemoryKind::Device, long)?);
    let copy = |priority| {
        let begun = Instant::now();
        adapter.manager.copy(src, dst).options(TransferOptions::new().priority(priority)).wait()?;
        Ok::<_, anyhow::Error>(begun.elapsed().as_secs_f64() * 1e6)
    };
    let beside = |priority| {
        move || {
            copy(priority)?;
            let low = TransferOptions::new().priority(StreamPriority::Low);
            let transfers: Vec<_> =
                (0..LONG_ONES).map(|_| adapter.manager.copy(from, to).options(low).submit()).collect();
            let took = copy(priority)?;
            transfers.into_iter().try_for_each(|transfer| transfer.wait().map(drop))?;
            Ok(took)
        }
    };
    let checked = Checked { adapter, target: Target::Ours(dst.clone()), expected: content };
    let goal = adapter.either(Some(Goal::RatioAtMost(OVER_NORMAL)), None);
    let after = format!("after {LONG_ONES} copies of {} MiB with Low priority", long / MIB);
    let high = Variant::new("high", &format!("High, {after}"), beside(StreamPriority::High));
    let variants = vec![
        Variant::new("normal", &format!("Normal, {after}"), beside(StreamPriority::Normal))
            .by_library()
            .verified_by(&checked),
        Variant { goal, ..high }.verified_by(&checked),
        Variant::new("idle", "High, nothing before it", || {
            copy(StreamPriority::High)?;
            copy(StreamPriority::High)
        })
        .verified_by(&checked),
    ];
    let what = "a copy of pinned memory to the device that is waited for";
    adapter.compare((&format!("urgent/{MIB}"), what), ("us", MIB), 20, 1, variants)
}
