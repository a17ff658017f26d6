//! Copies of 4 KiB that are waited for, one and many at once, next to plain wgpu.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use transload_backend_wgpu::{WgpuBackend, WgpuBackendConfig, wgpu};
use transload_core::{
    Backend as _, MemoryKind, Operation, QueueLease, RawBuffer, StreamPriority, Timing, WorkloadType, submit,
};

use super::{
    Adapter,
    checked::{Checked, Target},
    microseconds,
    plain::Plain,
};
use crate::{
    comparison::Variant,
    memory::Memory,
    row::{Goal, Row},
};

const BYTES: usize = 4 << 10;
const PIECES: usize = 1_000;
/// A prime, which the number of pieces is no multiple of: one piece of the device's memory is so many after the one before.
const STEP: usize = 7_919;
/// Goals: the time over plain wgpu's. A submission by hand that is waited for takes 0.3 of it on an H200 (group wgpu, part probe).
const ONE: f64 = 0.2;
const ADOPTED: f64 = 1.1;
const MANY: f64 = 1.1;
const ALLOCATE: f64 = 1.5;

/// A framework's device and a buffer of it, adopted.
struct Adopted {
    src: RawBuffer,
    dst: RawBuffer,
    queue: QueueLease,
    /// Where its bytes arrive.
    theirs: Target,
    _backend: Arc<WgpuBackend>,
}

impl Adopted {
    fn new(plain: &Plain, config: &WgpuBackendConfig, content: &[u8]) -> Result<Self> {
        let backend = WgpuBackend::open(config)?;
        let id = backend.devices().first().context("a device was adopted")?.id;
        let src = backend.allocate(id, MemoryKind::Pinned, content.len())?;
        Memory::Ours(src.clone()).write(0, content)?;
        let to = plain.storage(content.len());
        // SAFETY: it is a buffer of the device, and not destroyed.
        let dst = unsafe { backend.adopt_buffer(id, &to) }?;
        let queue = backend.lease_queue(id, StreamPriority::Normal, WorkloadType::Memory)?;
        Ok(Self { src, dst, queue, theirs: Target::Plain(plain.clone(), to), _backend: backend })
    }

    fn copy(&self) -> Result<()> {
        let operation = Operation::Copy { src: &self.src, dst: &self.dst };
        Ok(submit(&*self.queue, &operation, Timing::Off)?.wait()?)
    }
}

/// One copy.
pub(super) fn one(adapter: &Adapter<'_>) -> Result<Vec<Row>> {
    let (plain, content) = (&adapter.plain, &adapter.random(BYTES));
    let (src, dst) =
        (&adapter.filled(MemoryKind::Pinned, content)?, &adapter.allocate(MemoryKind::Device, BYTES)?);
    let (staging, to) = (plain.staging(content)?, plain.storage(BYTES));
    let queue = adapter.backend.lease_queue(adapter.info.id, StreamPriority::Normal, WorkloadType::Memory)?;
    let by_queue = || Ok(submit(&*queue, &Operation::Copy { src, dst }, Timing::Off)?.wait()?);
    let checked = |target| Checked { adapter, target, expected: content };
    let (theirs, own) =
        (checked(Target::Plain(plain.clone(), to.clone())), checked(Target::Ours(dst.clone())));
    let shared = Plain::open_to_share(&adapter.info)?;
    let config = WgpuBackendConfig::default().with_apis(wgpu::Backends::VULKAN);
    let shared = Adopted::new(
        &shared,
        &config.clone().with_device(shared.device.clone(), shared.queue.clone()),
        content,
    )?;
    // SAFETY: no surface is configured for it, and its queue is wgpu's.
    let config = unsafe { config.with_foreign_device(plain.device.clone(), plain.queue.clone()) };
    let foreign = Adopted::new(plain, &config, content)?;
    let (by_shared, by_foreign) = (checked(shared.theirs.clone()), checked(foreign.theirs.clone()));
    let variants = vec![
        Variant::new(
            "plain",
            "wgpu: one copy encoded, submitted and polled",
            microseconds(|| plain.copy(&staging, &to)),
        )
        .verified_by(&theirs),
        Variant::new("copy", "copy().wait()", microseconds(|| adapter.copy(src, dst)))
            .goal(Goal::RatioAtMost(ONE))
            .verified_by(&own),
        Variant::new("queue", "submit() to a queue, wait()", microseconds(by_queue)).verified_by(&own),
        Variant::new(
            "shared-device",
            "the same, to a framework's buffer on its shared device",
            microseconds(|| shared.copy()),
        )
        .goal(Goal::RatioAtMost(ADOPTED))
        .verified_by(&by_shared),
        Variant::new(
            "foreign-device",
            "the same, on a foreign device, that of `plain`",
            microseconds(|| foreign.copy()),
        )
        .goal(Goal::RatioAtMost(ADOPTED))
        .verified_by(&by_foreign),
    ];
    let repetitions = if adapter.options.quick { 100 } else { 1000 };
    let what = "pinned memory to the device, submitted and waited for";
    adapter.compare((&format!("up/{BYTES}"), what), ("us", BYTES), repetitions, 1, variants)
}

/// An allocation of device memory, and its drop.
pub(super) fn allocating(adapter: &Adapter<'_>) -> Result<Vec<Row>> {
    let plain = &adapter.plain;
    let by_wgpu = || {
        drop(plain.storage(BYTES));
        Ok(())
    };
    let ours = || {
        drop(adapter.allocate(MemoryKind::Device, BYTES)?);
        Ok(())
    };
    let variants = vec![
        Variant::new("plain", "wgpu: create_buffer()", microseconds(by_wgpu)),
        Variant::new("allocate", "allocate()", microseconds(ours)).goal(Goal::RatioAtMost(ALLOCATE)),
    ];
    let repetitions = if adapter.options.quick { 100 } else { 1000 };
    let what = "device memory allocated and dropped";
    // Nothing is moved.
    adapter.compare((&format!("allocate/{BYTES}"), what), ("us", 0), repetitions, 1, variants)
}

/// A list of copies.
pub(super) fn pieces(adapter: &Adapter<'_>) -> Result<Vec<Row>> {
    let (plain, total) = (&adapter.plain, PIECES * BYTES);
    let content = &adapter.random(total);
    let (src, dst) =
        (adapter.filled(MemoryKind::Pinned, content)?, adapter.allocate(MemoryKind::Device, total)?);
    let (staging, to) = (plain.staging(content)?, plain.storage(total));
    let offsets: Vec<_> = (0..PIECES).map(|piece| (piece * BYTES, piece * STEP % PIECES * BYTES)).collect();
    let (mut expected, mut pairs) = (vec![0; total], Vec::new());
    for (from, into) in &offsets {
        pairs.push((src.slice(*from..from + BYTES)?, dst.slice(*into..into + BYTES)?));
        let piece = content.get(*from..from + BYTES).context("a piece beyond the contents")?;
        expected.get_mut(*into..into + BYTES).context("a piece beyond the contents")?.copy_from_slice(piece);
    }
    let by_wgpu = || {
        plain.wait(plain.submit(|encoder| {
            for (from, into) in &offsets {
                encoder.copy_buffer_to_buffer(&staging, *from as u64, &to, *into as u64, BYTES as u64);
            }
        }))
    };
    let ours = || {
        adapter.manager.copy_many(&pairs).wait()?;
        Ok(())
    };
    let checked = |target| Checked { adapter, target, expected: &expected };
    let (theirs, own) = (checked(Target::Plain(plain.clone(), to.clone())), checked(Target::Ours(dst)));
    let variants = vec![
        Variant::new("plain", "wgpu: one encoder with all copies", microseconds(by_wgpu))
            .verified_by(&theirs),
        Variant::new("copy-many", "copy_many().wait()", microseconds(ours))
            .goal(Goal::RatioAtMost(MANY))
            .verified_by(&own),
    ];
    let what = format!("{PIECES} pieces of {BYTES} bytes of pinned memory to the device, scattered there");
    let id = format!("pieces-{PIECES}/{BYTES}");
    adapter.compare((&id, &what), ("us", total), 60, 1, variants)
}
