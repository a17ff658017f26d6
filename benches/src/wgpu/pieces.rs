//! Lists of 1,000 pieces of 4 KiB that are waited for, next to as many copies in one encoder of plain wgpu.

use anyhow::{Context as _, Result};
use transload_backend_wgpu::wgpu::{self, BufferUsages as Usages};
use transload_core::{MemoryKind, RawBuffer};

use super::{
    Adapter,
    checked::{Checked, Target},
    microseconds,
};
use crate::{
    comparison::Variant,
    memory::POISON,
    row::{Goal, Row},
};

const BYTES: usize = 4 << 10;
const PIECES: usize = 1_000;
const TOTAL: usize = PIECES * BYTES;
/// A prime, which the number of pieces is no multiple of: one piece of the destination is so many after the one before.
const STEP: usize = 7_919;
/// Goal: the time over plain wgpu's, which copies from multiples of 4 to such only.
const MANY: f64 = 1.1;

/// Lists each way.
pub(super) fn rows(adapter: &Adapter<'_>) -> Result<Vec<Row>> {
    let mut rows = lists(adapter, true)?;
    rows.extend(lists(adapter, false)?);
    Ok(rows)
}

/// Returns where each piece is from, and where to.
fn offsets() -> impl Iterator<Item = (usize, usize)> {
    (0..PIECES).map(|piece| (piece * BYTES, piece * STEP % PIECES * BYTES))
}

/// A list of the library.
struct List {
    pairs: Vec<(RawBuffer, RawBuffer)>,
    target: Target,
    /// All bytes of the destination.
    expected: Vec<u8>,
}

impl List {
    /// With a kind of host memory, and so many bytes before the first piece on both sides.
    fn new(
        adapter: &Adapter<'_>,
        content: &[u8],
        (kind, before, is_up): (MemoryKind, usize, bool),
    ) -> Result<Self> {
        let content = [&vec![POISON; before], content].concat();
        let host = adapter.filled(kind, &content)?;
        let device = adapter.allocate(MemoryKind::Device, content.len())?;
        adapter.copy(&host, &device)?;
        let (src, dst) = if is_up { (&host, &device) } else { (&device, &host) };
        let (mut expected, mut pairs) = (content.clone(), Vec::with_capacity(PIECES));
        for (from, to) in offsets() {
            let (from, to) = (before + from..before + from + BYTES, before + to..before + to + BYTES);
            pairs.push((src.slice(from.clone())?, dst.slice(to.clone())?));
            let piece = content.get(from).context("a piece beyond the contents")?;
            expected.get_mut(to).context("a piece beyond the contents")?.copy_from_slice(piece);
        }
        let target = if is_up { Target::Ours(device) } else { Target::Host(host) };
        Ok(Self { pairs, target, expected })
    }
}

fn lists(adapter: &Adapter<'_>, is_up: bool) -> Result<Vec<Row>> {
    let (plain, content) = (&adapter.plain, &adapter.random(TOTAL));
    let list = |kind, before| List::new(adapter, content, (kind, before, is_up));
    let (aligned, odd, pageable) =
        (list(MemoryKind::Pinned, 0)?, list(MemoryKind::Pinned, 1)?, list(MemoryKind::Pageable, 0)?);
    let storage = plain.storage(TOTAL);
    plain.write(&storage, content)?;
    let (from, to) = if is_up {
        (plain.staging(content)?, storage)
    } else {
        (storage, plain.buffer(TOTAL, Usages::MAP_READ | Usages::COPY_DST))
    };
    let encode = |encoder: &mut wgpu::CommandEncoder| {
        for (there, here) in offsets() {
            encoder.copy_buffer_to_buffer(&from, there as u64, &to, here as u64, BYTES as u64);
        }
    };
    let by_wgpu = || plain.wait(plain.submit(encode));
    let copy = |list: &List| -> Result<()> {
        adapter.manager.copy_many(&list.pairs).wait()?;
        Ok(())
    };
    let copy = &copy;
    let target = if is_up { Target::Plain } else { Target::Read };
    let theirs = Checked { adapter, target: target(plain.clone(), to.clone()), expected: &aligned.expected };
    let checks = [&aligned, &odd, &pageable].map(|list| Checked {
        adapter,
        target: list.target.clone(),
        expected: &list.expected,
    });
    let mut variants = vec![
        Variant::new("plain", "wgpu: one encoder with all copies", microseconds(by_wgpu))
            .verified_by(&theirs),
    ];
    let ours = [
        ("copy-many", "copy_many().wait()", &aligned),
        ("odd-offsets", "copy_many().wait(), every piece at an odd offset", &odd),
        ("pageable", "copy_many().wait(), pageable memory", &pageable),
    ];
    for ((name, method, list), check) in ours.into_iter().zip(&checks) {
        let timed = microseconds(move || copy(list));
        variants.push(Variant::new(name, method, timed).goal(Goal::RatioAtMost(MANY)).verified_by(check));
    }
    let (way, what) =
        if is_up { ("", "of host memory to the device") } else { ("-down", "of the device to host memory") };
    let what = format!("{PIECES} pieces of {BYTES} bytes {what}, scattered there");
    adapter.compare((&format!("pieces{way}-{PIECES}/{BYTES}"), &what), ("us", TOTAL), 60, 1, variants)
}
