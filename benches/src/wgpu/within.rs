//! Copies within the device's memory next to plain wgpu.

use anyhow::Result;
use transload_core::MemoryKind;

use super::{
    Adapter,
    checked::{Checked, Target},
    rate,
};
use crate::{
    comparison::Variant,
    row::{Goal, Row},
};

/// Goal: the rate over that of one plain wgpu submission, on a GPU.
const OVER_PLAIN: f64 = 2.5;

pub(super) fn rows(adapter: &Adapter<'_>) -> Result<Vec<Row>> {
    adapter.of_sizes(of_size)
}

fn of_size(adapter: &Adapter<'_>, bytes: usize) -> Result<Vec<Row>> {
    let content = &adapter.random(bytes);
    let plain = &adapter.plain;
    let (from, to) = (&plain.storage(bytes), &plain.storage(bytes));
    plain.write(from, content)?;
    let pinned = adapter.filled(MemoryKind::Pinned, content)?;
    let (src, dst) =
        (&adapter.allocate(MemoryKind::Device, bytes)?, &adapter.allocate(MemoryKind::Device, bytes)?);
    adapter.copy(&pinned, src)?;
    let checked = |target| Checked { adapter, target, expected: content };
    let theirs = checked(Target::Plain(plain.clone(), to.clone()));
    let own = checked(Target::Ours(dst.clone()));
    let goal = adapter.either(Some(Goal::RatioAtLeast(OVER_PLAIN)), None);
    let ours = Variant::new("copy", "copy().wait()", rate(bytes, || adapter.copy(src, dst)));
    let variants = vec![
        Variant::new("plain", "copy_buffer_to_buffer, poll", rate(bytes, || plain.copy(from, to)))
            .verified_by(&theirs),
        Variant { goal, ..ours }.verified_by(&own),
    ];
    let what = "one part of the device's memory to another";
    adapter.compare((&format!("within/{bytes}"), what), ("GB/s", bytes), Adapter::times(bytes), 1, variants)
}
