//! Rows of casts: 64 Mi elements between `f32` and `bf16`, next to a copy of what the link carries, and to a copy of all before or after
//! one kernel, as frameworks do it.

use std::{os::raw::c_void, time::Instant};

use anyhow::{Context as _, Result};
use transload_backend_cpu::CpuBackend;
use transload_backend_cuda::{CudaBackend, CudaBackendConfig};
use transload_core::{DeviceId, FloatType, MemoryKind, Operation, RawBuffer, Timing, submit};
use transload_streams::CudaStream;
use transload_transfer::CrossBackendTransferManager;

use crate::{
    comparison::{Comparison, Fixture, Parts, Variant, Verify},
    content::Content,
    memory::Memory,
    reference::RawQueue,
    row::{Goal, Row},
};

type Side = (MemoryKind, FloatType);

const WIDE: FloatType = FloatType::F32;
const NARROW: FloatType = FloatType::Bf16;

/// Every part, in order.
pub(crate) const PARTS: Parts = (
    "cast",
    &[
        ("up", |fixture| rows_of(fixture, "up", (MemoryKind::Pinned, WIDE), (MemoryKind::Device, NARROW))),
        ("down", |fixture| {
            rows_of(fixture, "down", (MemoryKind::Device, WIDE), (MemoryKind::Pinned, NARROW))
        }),
        ("widening-up", |fixture| {
            rows_of(fixture, "widening-up", (MemoryKind::Pinned, NARROW), (MemoryKind::Device, WIDE))
        }),
        ("pageable-up", |fixture| {
            rows_of(fixture, "pageable-up", (MemoryKind::Pageable, WIDE), (MemoryKind::Device, NARROW))
        }),
        ("within-device", |fixture| {
            rows_of(fixture, "within-device", (MemoryKind::Device, WIDE), (MemoryKind::Device, NARROW))
        }),
        ("within-host", |fixture| {
            rows_of(fixture, "within-host", (MemoryKind::Pageable, WIDE), (MemoryKind::Pageable, NARROW))
        }),
    ],
);

const ELEMENTS: usize = 64 << 20;

/// A destination, and what it has in the end.
struct Arrived<'a> {
    target: &'a RawBuffer,
    expected: &'a [u8],
}

impl Verify for Arrived<'_> {
    fn poison(&self) -> Result<()> {
        Memory::Ours(self.target.clone()).poison()
    }

    fn check(&self) -> Result<()> {
        Memory::Ours(self.target.clone()).compare(0, self.expected)
    }
}

fn rows_of(
    fixture: &Fixture<'_>,
    name: &str,
    (src_kind, from): Side,
    (dst_kind, to): Side,
) -> Result<Vec<Row>> {
    let manager = CrossBackendTransferManager::new();
    manager.register_backend(CpuBackend::new()?)?;
    let config = CudaBackendConfig::default().with_devices([fixture.device.ordinal()]);
    manager.register_backend(CudaBackend::open(&config)?)?;
    let elements = fixture.bytes(ELEMENTS);
    let allocate = |kind, float: FloatType| match kind {
        MemoryKind::Pageable => manager.allocate(DeviceId::Cpu, kind, elements * float.size()),
        _ => fixture.memory.allocate(kind, elements * float.size()),
    };
    let mut random = Content::new(elements * from.size(), 0xca57);
    let start = random.draw();
    let content = random.part(start, elements * from.size());
    let mut cast = vec![0; elements * to.size()];
    from.cast(content, to, &mut cast);
    let (src, dst) = (allocate(src_kind, from)?, allocate(dst_kind, to)?);
    Memory::Ours(src.clone()).write(0, content)?;
    // What the link carries is cast before it on the way down, else after it.
    let is_down = src_kind == MemoryKind::Device && dst_kind != MemoryKind::Device;
    let between = if is_down { allocate(src_kind, to)? } else { allocate(dst_kind, from)? };
    if is_down {
        Memory::Ours(between.clone()).write(0, &cast)?;
    }
    let (carried, carried_to, carried_content) =
        if is_down { (&between, &dst, &*cast) } else { (&src, &between, content) };

    let (queue, stream) = (RawQueue::new(0)?, CudaStream::new(&fixture.device)?);
    let raw = || {
        let host =
            |buffer: &RawBuffer| buffer.host_address().map(|address| address.as_ptr().cast::<c_void>());
        let device = |buffer: &RawBuffer| buffer.device_address().context("memory without an address");
        let bytes = carried.len();
        if src_kind == MemoryKind::Pinned {
            let source = host(carried).context("memory without an address")?;
            // SAFETY: both live on, have the bytes, and nothing else uses them now.
            unsafe { queue.copy_up(device(carried_to)?, source, bytes) }?;
        } else if dst_kind == MemoryKind::Pinned {
            let target = host(carried_to).context("memory without an address")?;
            // SAFETY: as above.
            unsafe { queue.copy_down(target, device(carried)?, bytes) }?;
        } else {
            manager.copy(carried, carried_to).wait()?;
        }
        queue.finish()
    };
    let two_steps = || {
        let (cast_src, cast_dst) = if is_down { (&src, &between) } else { (&between, &dst) };
        let cast = Operation::Cast { src: cast_src, from, dst: cast_dst, to };
        let copy = Operation::Copy { src: carried, dst: carried_to };
        let [first, second] = if is_down { [cast, copy] } else { [copy, cast] };
        submit(&stream, &first, Timing::Off)?;
        submit(&stream, &second, Timing::Off)?.wait()?;
        Ok(())
    };
    let ours = || {
        manager.cast((&src, from), (&dst, to)).wait()?;
        Ok(())
    };

    let is_pinned = [src_kind, dst_kind].contains(&MemoryKind::Pinned);
    let (copied, arrived) = (
        Arrived { target: carried_to, expected: carried_content },
        Arrived { target: &dst, expected: &cast },
    );
    let ours = Variant::new("cast", "cast, wait()", timed(ours)).verified_by(&arrived);
    let reference = if is_pinned { "cuMemcpyAsync, no cast" } else { "copy, no cast" };
    let copy = Variant::new("copy", reference, timed(raw));
    let copy = if is_pinned { copy } else { copy.by_library() };
    let mut variants =
        vec![copy.verified_by(&copied), if is_pinned { ours.goal(Goal::RatioAtMost(1.05)) } else { ours }];
    if is_pinned {
        let two = Variant::new("two-steps", "one copy and one kernel on a stream", timed(two_steps));
        variants.push(two.verified_by(&arrived));
    }
    let rows = Comparison {
        id: format!("{name}-{elements}"),
        what: format!("{elements} elements {from} in {src_kind} → {to} in {dst_kind} memory"),
        unit: "ms",
        bytes: carried.len() as u64,
        repetitions: fixture.repetitions(30),
    }
    .rows(fixture, variants)?;
    drop((src, dst, between));
    manager.drain()?;
    Ok(rows)
}

/// Returns what runs a variant and returns its time in ms.
fn timed(run: impl Fn() -> Result<()>) -> impl FnMut() -> Result<f64> {
    move || {
        let begun = Instant::now();
        run()?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::tested_on_the_software_driver;

    #[test]
    fn every_part_runs_on_the_software_driver() {
        tested_on_the_software_driver(PARTS);
    }
}
