//! Blocks of all layers of a paged cache: as one list, and as a list for each layer, whose end a kernel of that layer can wait for.

use std::time::Instant;

use anyhow::{Context as _, Result};
use transload_core::MemoryKind;
use transload_transfer::{CopyManyTransfer, CrossBackendTransferManager};

use super::{manager, pieces::Pieces, shapes::timed};
use crate::{
    comparison::{Comparison, Fixture, Variant},
    row::Row,
};

const LAYERS: usize = 32;
/// Blocks of a layer and their bytes: 16 tokens of 8 heads of 128 two-byte elements, keys or values.
const BLOCKS: usize = 64;
const BYTES: usize = 32 << 10;

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let (manager, blocks) = (manager(fixture)?, fixture.amount(BLOCKS));
    let count = LAYERS * blocks;
    let pinned = fixture.memory.allocate(MemoryKind::Pinned, count * BYTES)?;
    let pieces = Pieces::new(fixture, pinned, (count, BYTES), true)?;
    let whole = |exclusive| {
        let copy = manager.copy_many(&pieces.pairs);
        if exclusive { copy.exclusive() } else { copy }.wait()?;
        Ok(())
    };
    let mut variants = Vec::new();
    for (exclusive, ids, asked) in [
        (false, ["whole", "layers", "first-layer"], ""),
        (true, ["whole-exclusive", "layers-exclusive", "first-layer-exclusive"], ", exclusive()"),
    ] {
        let (manager, pieces) = (&manager, &pieces);
        let [of_whole, of_layers, of_first] = ids;
        let all = move || -> Result<()> {
            submitted(manager, pieces, blocks, exclusive)
                .into_iter()
                .try_for_each(|layer| layer.wait().map(drop))?;
            Ok(())
        };
        let first = move || -> Result<f64> {
            let begun = Instant::now();
            let mut layers = submitted(manager, pieces, blocks, exclusive).into_iter();
            layers.next().context("a layer")?.wait()?;
            let took = begun.elapsed().as_secs_f64() * 1e3;
            layers.try_for_each(|layer| layer.wait().map(drop))?;
            Ok(took)
        };
        variants.extend([
            Variant::new(
                of_whole,
                &format!("copy_many of all layers{asked}, wait()"),
                timed(move || whole(exclusive)),
            ),
            Variant::new(
                of_layers,
                &format!("copy_many of each layer{asked}, all submitted, then wait()"),
                timed(all),
            ),
            Variant::new(of_first, "the same, until the first layer is there", first),
        ]);
    }
    let variants = variants.into_iter().map(|variant| variant.verified_by(&pieces)).collect();
    let comparison = Comparison {
        id: format!("layers-{LAYERS}x{blocks}/{BYTES}"),
        what: format!("{LAYERS} layers of {blocks} blocks of {BYTES} bytes up"),
        unit: "ms",
        bytes: (count * BYTES) as u64,
        repetitions: fixture.repetitions(30),
    };
    let rows = comparison.rows(fixture, variants)?;
    manager.drain()?;
    Ok(rows)
}

/// Submits a list for each layer.
fn submitted(
    manager: &CrossBackendTransferManager,
    pieces: &Pieces,
    blocks: usize,
    exclusive: bool,
) -> Vec<CopyManyTransfer> {
    let of_layer = |pairs| {
        let copy = manager.copy_many(pairs);
        if exclusive { copy.exclusive() } else { copy }.submit()
    };
    pieces.pairs.chunks(blocks).map(of_layer).collect()
}
