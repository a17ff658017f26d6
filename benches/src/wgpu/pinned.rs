//! Large copies of pinned memory next to Vulkan by hand, and next to memcpy.

use std::cell::RefCell;

use anyhow::{Context as _, Result, ensure};
use transload_core::MemoryKind;

use super::{
    Adapter,
    checked::{Checked, Target},
    microseconds, rate,
    raw::RawCopies,
};
use crate::{
    comparison::{Variant, Verify},
    memory::POISON,
    reference::{Memcpy, Reference as _},
    row::{Goal, Row},
};

/// Goal: a pageable copy over Vulkan's copy of pinned memory, on a GPU.
const OF_RAW: f64 = 0.9;
/// Goal: an upload of pinned memory, and a copy to memory that the device has mapped, over memcpy, on a software adapter.
const OVER_MEMCPY: f64 = 1.2;

pub(super) fn rows(adapter: &Adapter<'_>) -> Result<Vec<Row>> {
    let mut rows = adapter.of_sizes(|adapter, bytes| beside_raw(adapter, bytes, true))?;
    rows.extend(adapter.of_sizes(|adapter, bytes| beside_raw(adapter, bytes, false))?);
    rows.extend(beside_memcpy(adapter)?);
    Ok(rows)
}

fn beside_raw(adapter: &Adapter<'_>, bytes: usize, up: bool) -> Result<Vec<Row>> {
    let content = &adapter.random(bytes);
    let raw = &RawVerified { copies: RefCell::new(RawCopies::new(&adapter.plain, bytes)?), content, up };
    raw.start()?;
    let device = &adapter.allocate(MemoryKind::Device, bytes)?;
    let pinned = &adapter.filled(MemoryKind::Pinned, content)?;
    let pageable = &adapter.filled(MemoryKind::Pageable, content)?;
    adapter.copy(pinned, device)?;
    let checked = |host| Checked {
        adapter,
        target: if up { Target::Ours(device.clone()) } else { Target::Host(host) },
        expected: content,
    };
    let (of_pinned, of_pageable) = (checked(pinned.clone()), checked(pageable.clone()));
    let ours = |host| move || if up { adapter.copy(host, device) } else { adapter.copy(device, host) };
    let goal = adapter.either(Some(Goal::RatioAtLeast(OF_RAW)), None);
    let by_hand = || if up { raw.copies.borrow().up() } else { raw.copies.borrow().down() };
    let from_pageable =
        Variant::new("pageable", "copy().wait(), pageable memory", rate(bytes, ours(pageable)));
    let variants = vec![
        Variant::new("raw", "vkCmdCopyBuffer, mapped memory, a fence", rate(bytes, by_hand)).verified_by(raw),
        Variant::new("pinned", "copy().wait(), pinned memory", rate(bytes, ours(pinned)))
            .verified_by(&of_pinned),
        Variant { goal, ..from_pageable }.verified_by(&of_pageable),
    ];
    let (id, what) = if up {
        ("raw-up", "host memory to the device, next to Vulkan by hand")
    } else {
        ("raw-down", "the device to host memory, next to Vulkan by hand")
    };
    let times = Adapter::times(bytes);
    adapter.compare((&format!("{id}/{bytes}"), what), ("GB/s", bytes), times, 1, variants)
}

fn beside_memcpy(adapter: &Adapter<'_>) -> Result<Vec<Row>> {
    let bytes = adapter.large();
    let content = &adapter.random(bytes);
    let src = &adapter.filled(MemoryKind::Pinned, content)?;
    let (device, host) =
        (&adapter.allocate(MemoryKind::Device, bytes)?, adapter.allocate(MemoryKind::Pageable, bytes)?);
    let address = |buffer: &transload_core::RawBuffer| buffer.host_address().context("no host address");
    // SAFETY: both live on, do not overlap, and are used by this thread only.
    let mut memcpy = unsafe { Memcpy::new(address(src)?, address(&host)?, bytes) };
    let checked = |target| Checked { adapter, target, expected: content };
    let (theirs, own) = (checked(Target::Host(host)), checked(Target::Ours(device.clone())));
    let goal = adapter.either(None, Some(Goal::RatioAtMost(OVER_MEMCPY)));
    let ours =
        Variant::new("pinned-up", "copy().wait(), pinned memory", microseconds(|| adapter.copy(src, device)));
    let mapped = if adapter.is_mapped() { Some(adapter.allocate(MemoryKind::Mapped, bytes)?) } else { None };
    let of_mapped = mapped.clone().map(|mapped| checked(Target::Host(mapped)));
    let mut variants = vec![
        Variant::new("memcpy", "memcpy, 1 thread", microseconds(|| memcpy.submit())).verified_by(&theirs),
        Variant { goal, ..ours }.verified_by(&own),
    ];
    if let (Some(mapped), Some(checked)) = (&mapped, &of_mapped) {
        let ours = Variant::new(
            "mapped",
            "copy().wait(), pinned to mapped memory",
            microseconds(|| adapter.copy(src, mapped)),
        );
        variants.push(Variant { goal, ..ours }.verified_by(checked));
    }
    let what = "pinned memory to the device, next to memcpy of the same bytes";
    adapter.compare((&format!("memcpy/{bytes}"), what), ("us", bytes), 30, 1, variants)
}

/// Vulkan's copies, and what they have to copy.
struct RawVerified<'a> {
    copies: RefCell<RawCopies<'a>>,
    content: &'a [u8],
    up: bool,
}

impl RawVerified<'_> {
    /// Writes the contents to both.
    fn start(&self) -> Result<()> {
        let mut copies = self.copies.borrow_mut();
        copies.host().copy_from_slice(self.content);
        copies.up()
    }
}

impl Verify for RawVerified<'_> {
    fn poison(&self) -> Result<()> {
        let mut copies = self.copies.borrow_mut();
        copies.host().fill(POISON);
        if self.up {
            copies.up()?;
            copies.host().copy_from_slice(self.content);
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let mut copies = self.copies.borrow_mut();
        if self.up {
            copies.host().fill(POISON);
            copies.down()?;
        }
        ensure!(copies.host() == self.content, "the bytes of Vulkan's copy differ");
        Ok(())
    }
}
