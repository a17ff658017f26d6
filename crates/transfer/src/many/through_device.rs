//! Whether a list goes through device memory: copy engines copy long stretches of the host's memory, and a kernel that touches no host
//! memory gathers or scatters the pieces.

use std::borrow::Cow;

use transload_core::{BlockList, BlockSide, HalfPairs, MemoryKind, Place, RawBuffer, TransferPath};

use super::{Pair, Pieces};
use crate::{
    built_in::through_device::{GAP, GAP_SHARE, JOINED, LEAST, LEAST_STAGED, SHORT, SHORT_STAGED},
    methods::CHUNK,
    planning::request::PlanInput,
};

/// What decides: of a list between pinned or mapped memory and a device.
struct Shape {
    bytes: u64,
    pieces: u64,
    /// Ranges of the host's memory that are made of pieces that follow each other, within the [longest gap](longest_gap).
    stretches: u64,
    /// Whether the device has no other work, and copies little the other way.
    exclusive: bool,
    rule: Rule,
}

/// A list that goes through device memory, in the order of the host's memory.
pub(super) enum InOrder<'a> {
    Pairs(Cow<'a, [Pair]>),
    /// Without pairs, which takes less time.
    Blocks(&'a BlockList),
    Sorted(Box<BlockList>),
}

impl InOrder<'_> {
    pub(super) fn pairs(&self) -> HalfPairs<'_> {
        match self {
            Self::Pairs(pairs) => HalfPairs::Pairs(pairs),
            Self::Blocks(blocks) => HalfPairs::Blocks(blocks, 0..blocks.len()),
            Self::Sorted(blocks) => HalfPairs::Blocks(blocks, 0..blocks.len()),
        }
    }
}

/// By what it is decided.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// It was not measured.
    BuiltIn,
    /// Whether it was measured to be faster.
    Faster(bool),
    /// The caller wants it.
    Wanted,
}

impl Shape {
    fn goes_through_device(&self) -> bool {
        let is_faster = match self.rule {
            // A kernel on the host's memory saves the way through the device's.
            Rule::BuiltIn => {
                !self.exclusive && self.bytes >= LEAST && self.bytes <= SHORT.saturating_mul(self.pieces)
            }
            Rule::Faster(is_faster) => is_faster,
            Rule::Wanted => return true,
        };
        is_faster && self.stretches.saturating_mul(JOINED) <= self.pieces
    }
}

/// Returns whether a list of so many pairs goes through device memory if they lie there in the right order.
pub(super) fn may_go_through_device(
    count: u64,
    PlanInput { path, bytes, .. }: &PlanInput,
    exclusive: bool,
    rule: Rule,
) -> bool {
    if !is_staged(path) {
        let shape = Shape { bytes: *bytes, pieces: count, stretches: 1, exclusive, rule };
        let are_short = *bytes <= (CHUNK as u64).saturating_mul(count);
        return host_side(path).is_some() && are_short && shape.goes_through_device();
    }
    let is_faster = match rule {
        // Without other work on the device a kernel that accesses the staging buffers saves the way through its memory.
        Rule::BuiltIn => !exclusive && count >= LEAST_STAGED && *bytes <= SHORT_STAGED.saturating_mul(count),
        Rule::Faster(is_faster) => is_faster,
        Rule::Wanted => true,
    };
    is_faster && fits(path, *bytes)
}

/// Returns the list, which [may](may_go_through_device), if it is to go through device memory; one that copy engines copy from or to the
/// host in the order of its memory. Blocks are not staged in host memory: their pairs are.
pub(super) fn ordered<'a>(
    pieces: Pieces<'a>,
    input: &PlanInput,
    exclusive: bool,
    rule: Rule,
) -> Option<InOrder<'a>> {
    match pieces {
        Pieces::Pairs(pairs) => ordered_pairs(pairs, input, exclusive, rule).map(InOrder::Pairs),
        Pieces::Blocks(blocks) => ordered_blocks(blocks, input, exclusive, rule),
    }
}

fn ordered_blocks<'a>(
    blocks: &'a BlockList,
    PlanInput { path, bytes, .. }: &PlanInput,
    exclusive: bool,
    rule: Rule,
) -> Option<InOrder<'a>> {
    host_side(path)?;
    if blocks.block_bytes() > CHUNK {
        return None;
    }
    let pieces = blocks.len() as u64;
    let goes = |stretches: usize| {
        Shape { bytes: *bytes, pieces, stretches: stretches as u64, exclusive, rule }.goes_through_device()
    };
    let side = if path.src.device.is_cpu() { BlockSide::Source } else { BlockSide::Destination };
    let (stretches, least) = blocks.stretches(side);
    if goes(stretches) {
        return Some(InOrder::Blocks(blocks));
    }
    let sorted = goes(least).then(|| blocks.sorted_by(side));
    sorted.filter(|sorted| goes(sorted.stretches(side).0)).map(|sorted| InOrder::Sorted(Box::new(sorted)))
}

fn ordered_pairs<'a>(
    pairs: &'a [Pair],
    PlanInput { path, bytes, .. }: &PlanInput,
    exclusive: bool,
    rule: Rule,
) -> Option<Cow<'a, [Pair]>> {
    if is_staged(path) {
        let is_up = path.src.device.is_cpu();
        let on_device = pairs.iter().map(|(src, dst)| if is_up { dst } else { src });
        // Those that follow each other on the device are one copy of an engine: in staging buffers they do anyway.
        let are_apart = stretches(on_device, 0).saturating_mul(JOINED) > pairs.len() as u64;
        return (are_apart || rule == Rule::Wanted).then_some(Cow::Borrowed(pairs));
    }
    let side = host_side(path)?;
    if pairs.iter().any(|pair| pair.0.len() > CHUNK) {
        return None;
    }
    let pieces = pairs.len() as u64;
    let gap = longest_gap(path.src, (pieces, *bytes));
    let stretches_of = |stretches| Shape { bytes: *bytes, pieces, stretches, exclusive, rule };
    if stretches_of(stretches(pairs.iter().map(side), gap)).goes_through_device() {
        return Some(Cow::Borrowed(pairs));
    }
    if !is_dense(pairs.iter().map(side), *bytes) {
        return None;
    }
    let mut sorted: Vec<&Pair> = pairs.iter().collect();
    sorted.sort_unstable_by_key(|pair| side(pair).host_address());
    let shape = stretches_of(stretches(sorted.iter().map(|pair| side(pair)), gap));
    shape.goes_through_device().then(|| sorted.into_iter().cloned().collect())
}

/// Returns whether a list may be as long: what is staged goes as one piece.
fn fits(path: &TransferPath, bytes: u64) -> bool {
    bytes <= CHUNK as u64 || !is_staged(path)
}

/// Returns whether a list of the path is staged in host memory.
pub(super) fn is_staged(path: &TransferPath) -> bool {
    let is_pageable = |place: Place| place.device.is_cpu() && place.kind == MemoryKind::Pageable;
    let is_device = |place: Place| place.kind == MemoryKind::Device;
    is_pageable(path.src) && is_device(path.dst) || is_device(path.src) && is_pageable(path.dst)
}

/// Returns which of a pair is host memory that copy engines access, if the other one is a device's.
fn host_side(path: &TransferPath) -> Option<fn(&Pair) -> &RawBuffer> {
    let is_pinned = |place: Place| matches!(place.kind, MemoryKind::Pinned | MemoryKind::Mapped);
    let is_device = |place: Place| place.kind == MemoryKind::Device;
    match (path.src, path.dst) {
        (src, dst) if is_pinned(src) && is_device(dst) => Some(|pair| &pair.0),
        (src, dst) if is_device(src) && is_pinned(dst) => Some(|pair| &pair.1),
        _ => None,
    }
}

/// Returns how many bytes there may be between two pieces of a stretch, of a list of so many pieces and bytes from such memory. None of a
/// download, which would write them.
pub(crate) fn longest_gap(src: Place, (pieces, bytes): (u64, u64)) -> usize {
    if src.kind == MemoryKind::Device && !transload_core::mutant!("transfer/gaps-of-downloads") {
        return 0;
    }
    let share = bytes / pieces.max(1) / GAP_SHARE;
    match usize::try_from(share) {
        Ok(share) if !transload_core::mutant!("transfer/gaps-of-any-share") => GAP.min(share),
        _ => GAP,
    }
}

fn stretches<'a>(mut pieces: impl Iterator<Item = &'a RawBuffer>, gap: usize) -> u64 {
    let Some(mut last) = pieces.next() else { return 0 };
    let begins = |piece: &&'a RawBuffer| std::mem::replace(&mut last, piece).gap_to(piece, gap).is_none();
    1 + pieces.filter(begins).count() as u64
}

/// Returns whether the pieces could be long stretches in another order: not if they are a small part of the memory in which they lie.
fn is_dense<'a>(pieces: impl Iterator<Item = &'a RawBuffer>, bytes: u64) -> bool {
    let (first, last) =
        pieces.filter_map(|piece| piece.host_address()).fold((usize::MAX, 0), |(first, last), address| {
            let address = address.addr().get();
            (first.min(address), last.max(address))
        });
    last.saturating_sub(first) as u64 <= bytes.saturating_mul(JOINED)
}

#[cfg(test)]
mod tests {
    use transload_backend_cpu::CpuBackend;
    use transload_core::{Backend, DeviceId, MemoryKind, Place};

    use super::{GAP, JOINED, Rule, Shape, longest_gap, stretches};

    #[test]
    fn gaps_of_uploads_are_short_for_their_pieces() {
        let from = |kind, list| longest_gap(Place::new(DeviceId::Cpu, kind), list);
        let bytes = GAP as u64 * 4;
        for (list, gap) in
            [((1000, 4_093_000), 1023), ((100, 100 * bytes), GAP), ((3, 300 * bytes), GAP), ((0, 0), 0)]
        {
            assert_eq!((from(MemoryKind::Pinned, list), from(MemoryKind::Mapped, list)), (gap, gap));
            let device = Place::new(DeviceId::Cuda(0), MemoryKind::Device);
            assert_eq!(longest_gap(device, list), 0, "a download would write them");
        }
    }

    #[test]
    fn stretches_have_short_gaps_in_ascending_order_of_one_allocation() {
        let backend = CpuBackend::new().unwrap();
        let memory = || backend.allocate(DeviceId::Cpu, MemoryKind::Pageable, 1000).unwrap();
        let (whole, other) = (memory(), memory());
        let part = |range: std::ops::Range<usize>| whole.slice(range).unwrap();
        for (next, within, of_neighbours) in [
            (part(200..300), 1, 1),
            (part(207..300), 1, 2),
            (part(208..300), 2, 2),
            (part(199..300), 2, 2),
            (part(0..100), 2, 2),
            (other.slice(200..300).unwrap(), 2, 2),
        ] {
            let pieces = [part(100..200), next];
            assert_eq!(stretches(pieces.iter(), 7), within, "{pieces:?}");
            assert_eq!(stretches(pieces.iter(), 0), of_neighbours, "{pieces:?}");
        }
        let goes = |stretches| {
            let shape =
                Shape { bytes: 4_093_000, pieces: 1000, stretches, exclusive: false, rule: Rule::BuiltIn };
            shape.goes_through_device()
        };
        assert!(goes(1) && goes(1000 / JOINED) && !goes(1000 / JOINED + 1));
    }
}
