//! Copies of 4 KiB that are waited for, next to plain wgpu, and allocations of as many bytes.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use transload_backend_wgpu::{
    WgpuBackend, WgpuBackendConfig,
    wgpu::{self, BufferUsages as Usages},
};
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
/// Goals: the time over plain wgpu's. A submission by hand that is waited for takes 0.3 of it on an H200 (group wgpu, part probe).
const ONE: f64 = 0.2;
const ADOPTED: f64 = 1.1;
const ALLOCATE: f64 = 1.5;

/// A framework's device and a buffer of it, adopted, and pinned memory.
struct Adopted {
    src: RawBuffer,
    dst: RawBuffer,
    queue: QueueLease,
    /// Where the bytes arrive.
    target: Target,
    _backend: Arc<WgpuBackend>,
}

impl Adopted {
    fn new(plain: &Plain, config: &WgpuBackendConfig, content: &[u8], is_up: bool) -> Result<Self> {
        let backend = WgpuBackend::open(config)?;
        let id = backend.devices().first().context("a device was adopted")?.id;
        let pinned = backend.allocate(id, MemoryKind::Pinned, content.len())?;
        Memory::Ours(pinned.clone()).write(0, content)?;
        let theirs = plain.storage(content.len());
        plain.write(&theirs, content)?;
        // SAFETY: it is a buffer of the device, and not destroyed.
        let adopted = unsafe { backend.adopt_buffer(id, &theirs) }?;
        let queue = backend.lease_queue(id, StreamPriority::Normal, WorkloadType::Memory)?;
        let target = if is_up { Target::Plain(plain.clone(), theirs) } else { Target::Host(pinned.clone()) };
        let (src, dst) = if is_up { (pinned, adopted) } else { (adopted, pinned) };
        Ok(Self { src, dst, queue, target, _backend: backend })
    }

    fn copy(&self) -> Result<()> {
        let operation = Operation::Copy { src: &self.src, dst: &self.dst };
        Ok(submit(&*self.queue, &operation, Timing::Off)?.wait()?)
    }
}

/// One copy each way.
pub(super) fn rows(adapter: &Adapter<'_>) -> Result<Vec<Row>> {
    let mut rows = one(adapter, true)?;
    rows.extend(one(adapter, false)?);
    Ok(rows)
}

fn one(adapter: &Adapter<'_>, is_up: bool) -> Result<Vec<Row>> {
    let (plain, content) = (&adapter.plain, &adapter.random(BYTES));
    let (pinned, device) =
        (adapter.filled(MemoryKind::Pinned, content)?, adapter.allocate(MemoryKind::Device, BYTES)?);
    adapter.copy(&pinned, &device)?;
    let (src, dst) = if is_up { (&pinned, &device) } else { (&device, &pinned) };
    let storage = plain.storage(BYTES);
    plain.write(&storage, content)?;
    let (from, to) = if is_up {
        (plain.staging(content)?, storage)
    } else {
        (storage, plain.buffer(BYTES, Usages::MAP_READ | Usages::COPY_DST))
    };
    let queue = adapter.backend.lease_queue(adapter.info.id, StreamPriority::Normal, WorkloadType::Memory)?;
    let by_queue = || Ok(submit(&*queue, &Operation::Copy { src, dst }, Timing::Off)?.wait()?);
    let checked = |target| Checked { adapter, target, expected: content };
    let theirs = if is_up {
        Target::Plain(plain.clone(), to.clone())
    } else {
        Target::Read(plain.clone(), to.clone())
    };
    let ours = if is_up { Target::Ours(dst.clone()) } else { Target::Host(dst.clone()) };
    let (theirs, own) = (checked(theirs), checked(ours));
    let shared = Plain::open_to_share(&adapter.info)?;
    let config = WgpuBackendConfig::default().with_apis(wgpu::Backends::VULKAN);
    let shared = Adopted::new(
        &shared,
        &config.clone().with_device(shared.device.clone(), shared.queue.clone()),
        content,
        is_up,
    )?;
    // SAFETY: no surface is configured for it, and its queue is wgpu's.
    let config = unsafe { config.with_foreign_device(plain.device.clone(), plain.queue.clone()) };
    let foreign = Adopted::new(plain, &config, content, is_up)?;
    let (by_shared, by_foreign) = (checked(shared.target.clone()), checked(foreign.target.clone()));
    let variants = vec![
        Variant::new(
            "plain",
            "wgpu: one copy encoded, submitted and polled",
            microseconds(|| plain.copy(&from, &to)),
        )
        .verified_by(&theirs),
        Variant::new("copy", "copy().wait()", microseconds(|| adapter.copy(src, dst)))
            .goal(Goal::RatioAtMost(ONE))
            .verified_by(&own),
        Variant::new("queue", "submit() to a queue, wait()", microseconds(by_queue)).verified_by(&own),
        Variant::new(
            "shared-device",
            "the same, with a framework's buffer on its shared device",
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
    let (way, what) = if is_up {
        ("up", "pinned memory to the device, submitted and waited for")
    } else {
        ("down", "the device to pinned memory, submitted and waited for")
    };
    adapter.compare((&format!("{way}/{BYTES}"), what), ("us", BYTES), repetitions, 1, variants)
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
