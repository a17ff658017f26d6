//! Pieces of an odd length at odd offsets, next to the same number of aligned ones by the best raw call or kernel.

use anyhow::Result;
use transload_core::MemoryKind;
use transload_cuda_sys::Driver;

use super::{manager, pieces::Pieces, raw_list::RawList, shapes::timed};
use crate::{
    comparison::{Comparison, Fixture, Variant},
    reference::RawQueue,
    row::Row,
};

const COUNT: usize = 1_000;
/// Length of a piece, and of an aligned one.
const BYTES: usize = 4_093;
const ALIGNED: usize = 4_096;
/// Bytes from one piece to the next and the offset of the first, at source and destination. All offsets are odd, and the distances of the two
/// ends of a piece, modulo 16, are all that are even.
const AT_SOURCE: (usize, usize) = (4_102, 1);
const AT_DESTINATION: (usize, usize) = (4_108, 3);

pub(super) fn rows(fixture: &Fixture<'_>) -> Result<Vec<Row>> {
    let of = [
        ("up", MemoryKind::Pinned, MemoryKind::Device),
        ("down", MemoryKind::Device, MemoryKind::Pinned),
        ("within", MemoryKind::Device, MemoryKind::Device),
    ];
    let mut rows = Vec::new();
    for (name, from, to) in of {
        rows.extend(of_kinds(fixture, name, [from, to])?);
    }
    Ok(rows)
}

fn of_kinds(fixture: &Fixture<'_>, name: &str, kinds: [MemoryKind; 2]) -> Result<Vec<Row>> {
    let (manager, count) = (manager(fixture)?, fixture.amount(COUNT));
    let pieces = |places, bytes| Pieces::placed(fixture, kinds, (count, bytes), places);
    let unaligned = pieces([AT_SOURCE, AT_DESTINATION], BYTES)?;
    let aligned = pieces([(ALIGNED, 0); 2], ALIGNED)?;
    let (queue, list) = (RawQueue::new(0)?, RawList::new(fixture, count)?);
    let batch = |pieces: &Pieces| {
        // SAFETY: the memory lives on, and nothing else uses it now.
        unsafe { queue.copy_batch(&pieces.destinations, &pieces.sources, &pieces.sizes) }?;
        queue.finish()
    };
    let many = |exclusive| {
        let copy = manager.copy_many(&unaligned.pairs);
        if exclusive { copy.exclusive() } else { copy }.wait()?;
        Ok(())
    };
    let mut variants = vec![
        Variant::new(
            "raw-list-aligned",
            "a raw kernel over aligned pieces",
            timed(|| list.run(&aligned, &queue)),
        )
        .verified_by(&aligned),
    ];
    if Driver::get()?.has(c"cuMemcpyBatchAsync_v2") {
        let on_aligned = timed(|| batch(&aligned));
        let by_batch = Variant::new("raw-batch-aligned", "the raw batch call, aligned pieces", on_aligned);
        variants.push(by_batch.verified_by(&aligned));
    }
    let forms = variants.len();
    if forms > 1 {
        let by_batch = Variant::new("raw-batch", "the raw batch call", timed(|| batch(&unaligned)));
        variants.push(by_batch.verified_by(&unaligned));
    }
    let copies =
        [("copy-many", "copy_many, wait()", false), ("exclusive", "copy_many, exclusive(), wait()", true)];
    variants.extend(copies.map(|(id, method, exclusive)| {
        Variant::new(id, method, timed(move || many(exclusive))).verified_by(&unaligned)
    }));
    let comparison = Comparison {
        id: format!("unaligned-{name}-{count}/{BYTES}"),
        what: format!("{count} pieces of {BYTES} bytes at odd offsets, {name}, all of them"),
        unit: "ms",
        bytes: (count * BYTES) as u64,
        repetitions: fixture.repetitions(30),
    };
    let rows = comparison.rows_over_best(forms, fixture.group, fixture.is_simulated(), variants)?;
    manager.drain()?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::many::pieces::placed;

    #[test]
    fn no_end_of_a_piece_is_aligned_and_every_distance_occurs() {
        let ends: Vec<_> =
            (0..COUNT).map(|index| placed(index, COUNT, [AT_SOURCE, AT_DESTINATION])).collect();
        assert!(ends.iter().all(|(from, to)| from % 2 == 1 && to % 2 == 1));
        let sources: BTreeSet<usize> = ends.iter().map(|(from, _)| from % 16).collect();
        let distances: BTreeSet<usize> = ends.iter().map(|(from, to)| to.abs_diff(*from) % 16).collect();
        assert_eq!((sources.len(), distances.len()), (8, 8));
        assert!(BYTES <= AT_SOURCE.0.min(AT_DESTINATION.0), "pieces do not overlap");
    }
}
