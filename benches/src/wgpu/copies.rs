//! Large copies between pageable memory and a device, next to what plain wgpu offers for it.

use anyhow::Result;
use transload_backend_wgpu::wgpu::BufferUsages as Usages;
use transload_core::{MemoryKind, RawBuffer, TransferMethod};

use super::{
    Adapter, MIB,
    checked::{Checked, Target},
    rate,
};
use crate::{
    comparison::Variant,
    row::{Goal, Row},
};

/// Goals: the rate over that of the best form of plain wgpu, on a GPU and on a software adapter.
const OVER_PLAIN: [f64; 2] = [4.0, 1.0];
/// Up to here all forms and methods are measured; of more bytes what is fast, since the rest takes most of the time.
const ALL: usize = 64 * MIB;

pub(super) fn upload(adapter: &Adapter<'_>, bytes: usize) -> Result<Vec<Row>> {
    let (plain, content) = (&adapter.plain, &adapter.random(bytes));
    let (src, dst) =
        (adapter.filled(MemoryKind::Pageable, content)?, adapter.allocate(MemoryKind::Device, bytes)?);
    let (to, staging) = (&plain.storage(bytes), &plain.staging(content)?);
    let checked = |target| Checked { adapter, target, expected: content };
    let (theirs, own) =
        (checked(Target::Plain(plain.clone(), to.clone())), checked(Target::Ours(dst.clone())));
    let mut variants = vec![
        Variant::new("write-buffer", "wgpu's write_buffer", rate(bytes, || plain.write(to, content))),
        Variant::new(
            "mapped-again",
            "wgpu, one mapped staging buffer",
            rate(bytes, || plain.write_by(staging, to, content)),
        ),
    ];
    if bytes <= ALL {
        variants.push(Variant::new(
            "mapped-at-creation",
            "wgpu, new staging buffers",
            rate(bytes, || plain.copy(&plain.staging(content)?, to)),
        ));
    }
    let forms = variants.len();
    variants = variants.into_iter().map(|variant| variant.verified_by(&theirs)).collect();
    variants.extend(ours(adapter, &src, &dst).into_iter().map(|variant| variant.verified_by(&own)));
    let what = ("pageable-up", "pageable memory to the device");
    compare(adapter, what, bytes, forms, variants)
}

pub(super) fn download(adapter: &Adapter<'_>, bytes: usize) -> Result<Vec<Row>> {
    let (plain, content) = (&adapter.plain, &adapter.random(bytes));
    let (src, dst) =
        (adapter.allocate(MemoryKind::Device, bytes)?, adapter.allocate(MemoryKind::Pageable, bytes)?);
    adapter.copy(&adapter.filled(MemoryKind::Pageable, content)?, &src)?;
    let (from, staging) = (plain.storage(bytes), plain.buffer(bytes, Usages::MAP_READ | Usages::COPY_DST));
    plain.write(&from, content)?;
    let to = adapter.allocate(MemoryKind::Pageable, bytes)?;
    let checked =
        |buffer: &RawBuffer| Checked { adapter, target: Target::Host(buffer.clone()), expected: content };
    let (theirs, own) = (checked(&to), checked(&dst));
    let read = || plain.read_by(&staging, &from, &mut to.write()?);
    let mut variants =
        vec![Variant::new("map-read", "wgpu, one mapped buffer", rate(bytes, read)).verified_by(&theirs)];
    variants.extend(ours(adapter, &src, &dst).into_iter().map(|variant| variant.verified_by(&own)));
    compare(adapter, ("pageable-down", "the device to pageable memory"), bytes, 1, variants)
}

/// Returns the chosen method, which has the goal, and up to [`ALL`] bytes every one that applies.
fn ours<'a>(adapter: &'a Adapter<'_>, src: &'a RawBuffer, dst: &'a RawBuffer) -> Vec<Variant<'a>> {
    let [gpu, software] = OVER_PLAIN;
    let bytes = src.len();
    let chosen = adapter
        .manager
        .copy(src, dst)
        .plan()
        .map_or_else(|error| error.to_string(), |plan| plan.method.to_string());
    let auto =
        Variant::new("auto", &format!("copy().wait(), {chosen}"), rate(bytes, || adapter.copy(src, dst)));
    let by = |name: &str, method: TransferMethod| {
        Variant::new(
            name,
            &format!("{method}, wait()"),
            rate(bytes, move || {
                adapter.manager.copy(src, dst).method(method).wait()?;
                Ok(())
            }),
        )
    };
    let mut variants = vec![auto.goal(Goal::RatioAtLeast(adapter.either(gpu, software)))];
    if bytes > ALL {
        return variants;
    }
    variants.push(by("staged", TransferMethod::HostStaged));
    variants.push(by("direct", TransferMethod::DirectCopy));
    if adapter.is_mapped() {
        variants.push(by("zero-copy", TransferMethod::ZeroCopy));
    }
    variants
}

fn compare(
    adapter: &Adapter<'_>,
    (id, what): (&str, &str),
    bytes: usize,
    forms: usize,
    variants: Vec<Variant<'_>>,
) -> Result<Vec<Row>> {
    let repetitions = Adapter::times(bytes);
    adapter.compare((&format!("{id}/{bytes}"), what), ("GB/s", bytes), repetitions, forms, variants)
}
