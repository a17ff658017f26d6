//! The tensors of a model, of very different lengths, between pageable memory and a device: `copy_many` next to staging by hand.

use std::{iter, time::Instant};

use anyhow::{Result, ensure};
use transload_core::{DeviceId, MemoryKind, RawBuffer};

use super::manager;
use crate::{
    comparison::{Comparison, Fixture, Variant, Verify},
    content::Content,
    memory::Memory,
    reference::{Reference as _, Staged},
    row::{Goal, Row},
};

/// Number and length in bytes of the tensors: 300 of 3.0 GiB in all.
const TENSORS: [(usize, usize); 8] = [
    (1, 200 << 20),
    (2, 100 << 20),
    (21, 48 << 20),
    (40, 32 << 20),
    (40, 8 << 20),
    (50, 1 << 20),
    (50, 256 << 10),
    (96, 4 << 10),
];
/// A prime, which does not divide the number of tensors: lengths are mixed, as in a model.
const STEP: usize = 7_919;
/// Goal in GB/s.
const RATE: f64 = 45.0;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let manager = manager(fixture)?;
    let scale = if fixture.is_quick() { 16 } else { 1 };
    let all = TENSORS.iter().flat_map(|(count, bytes)| iter::repeat_n(*bytes, *count));
    let all: Vec<usize> = all.map(|bytes| fixture.bytes(bytes / scale)).collect();
    let lengths = (0..all.len()).filter_map(|index| all.get(index * STEP % all.len()).copied());
    let tensors = lengths.map(|bytes| {
        let host = manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, bytes)?;
        Ok((host, manager.allocate(fixture.device.id(), MemoryKind::Device, bytes)?))
    });
    let tensors = tensors.collect::<Result<Vec<(RawBuffer, RawBuffer)>>>()?;
    let total: usize = all.iter().sum();
    let mut content = Content::new(all.iter().copied().max().unwrap_or(0), 0x57A7);
    let starts: Vec<usize> = tensors.iter().map(|_| content.draw()).collect();

    let mut rows = Vec::new();
    for up in [true, false] {
        let oriented = |(host, device): &(RawBuffer, RawBuffer)| {
            if up { (host.clone(), device.clone()) } else { (device.clone(), host.clone()) }
        };
        let copies =
            Copies { pairs: tensors.iter().map(oriented).collect(), starts: &starts, content: &content };
        copies.fill()?;
        let addresses = copies.pairs.iter().map(|(src, dst)| {
            let address = |buffer: &RawBuffer| Memory::Ours(buffer.clone()).address();
            Ok((address(src)?, address(dst)?, src.len()))
        });
        let addresses = addresses.collect::<Result<Vec<_>>>()?;
        // SAFETY: the tensors live longer, are buffers of their own, and the variants take turns.
        let mut staged = unsafe { Staged::new(fixture.context()?, &addresses) }?;
        let rate = |begun: Instant| total as f64 / begun.elapsed().as_secs_f64() / 1e9;
        let by_hand = || {
            let begun = Instant::now();
            staged.submit()?;
            staged.finish()?;
            Ok(rate(begun))
        };
        let by_library = || {
            let begun = Instant::now();
            manager.copy_many(&copies.pairs).wait()?;
            Ok(rate(begun))
        };
        let comparison = Comparison {
            id: format!("state-dict/{}", if up { "up" } else { "down" }),
            what: format!(
                "{} tensors of different lengths, pageable memory {}",
                tensors.len(),
                if up { "up" } else { "down" }
            ),
            unit: "GB/s",
            bytes: total as u64,
            repetitions: fixture.repetitions(30),
        };
        let variants = vec![
            Variant::new("staged", "8 staging threads by hand", by_hand).verified_by(&copies),
            Variant::new("copy-many", "copy_many, wait()", by_library)
                .goal(Goal::AtLeast(RATE))
                .verified_by(&copies),
        ];
        rows.extend(comparison.rows(fixture, variants)?);
    }
    drop(tensors);
    manager.drain()?;
    for (name, counts) in manager.resource_counts() {
        ensure!(counts.is_empty(), "still allocated in the {name} backend: {counts}");
    }
    Ok(rows)
}

/// Sources and destinations, and where the content of each begins.
struct Copies<'a> {
    pairs: Vec<(RawBuffer, RawBuffer)>,
    starts: &'a [usize],
    content: &'a Content,
}

impl Copies<'_> {
    fn each(&self) -> impl Iterator<Item = (&(RawBuffer, RawBuffer), &[u8])> {
        let part = |(pair, start): (_, &usize)| {
            let pair: &(RawBuffer, RawBuffer) = pair;
            (pair, self.content.part(*start, pair.0.len()))
        };
        self.pairs.iter().zip(self.starts).map(part)
    }

    fn fill(&self) -> Result<()> {
        self.each().try_for_each(|((src, _), content)| Memory::Ours(src.clone()).write(0, content))
    }
}

impl Verify for Copies<'_> {
    fn poison(&self) -> Result<()> {
        self.pairs.iter().try_for_each(|(_, dst)| Memory::Ours(dst.clone()).poison())
    }

    fn check(&self) -> Result<()> {
        self.each().try_for_each(|((_, dst), content)| Memory::Ours(dst.clone()).compare(0, content))
    }
}
