//! Copies of blocks of paged caches: equal parts of pools, chosen by index.

use std::mem;

use transload_core::{Error, ErrorKind, PairList, RawBuffer, Result};

use crate::{CopyManyBuilder, CrossBackendTransferManager, many::List};

/// Blocks of one side: a pool for each layer, and the indices of the blocks, the same in each pool. Block `i` begins at byte `i *
/// block_bytes` of its pool.
type Blocks<'a> = (&'a [RawBuffer], &'a [usize]);

impl CrossBackendTransferManager {
    /// Copies blocks of paged caches: for each layer, block `from[i]` of the source's pool over block `to[i]` of the destination's. One
    /// pool may have several layers: slice it. Nothing is copied before the builder is submitted; its pairs are in the order of the
    /// layers, then of the indices.
    ///
    /// Neighbours are joined, and bytes between the blocks are not in use: other work on them runs at the same time. To copy the same
    /// blocks again and again, [record](CopyManyBuilder::record) the builder.
    ///
    /// ```
    /// # use transload_backend_cpu::CpuBackend;
    /// # use transload_core::{DeviceId, MemoryKind};
    /// # use transload_transfer::CrossBackendTransferManager;
    /// # let manager = CrossBackendTransferManager::new();
    /// # manager.register_backend(CpuBackend::new()?)?;
    /// # let allocate = || manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, 16 * 512);
    /// // Two layers of 16 blocks.
    /// let (cache, evicted) = ([allocate()?, allocate()?], [allocate()?, allocate()?]);
    /// let report = manager.copy_blocks((&cache, &[7, 2, 5]), (&evicted, &[0, 1, 2]), 512)?.wait()?;
    /// # assert_eq!(report.bytes, 2 * 3 * 512);
    /// # Ok::<(), transload_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for different numbers of layers or of indices, and blocks of 0 bytes; [`ErrorKind::OutOfRange`] for
    /// a block that a pool does not have; [`ErrorKind::Overlap`] for a destination block that is given twice. Both name the index and
    /// its position. [`ErrorKind::OutOfMemory`] if the host has no memory for the pairs of all layers.
    pub fn copy_blocks(
        &self,
        source: (&[RawBuffer], &[usize]),
        destination: (&[RawBuffer], &[usize]),
        block_bytes: usize,
    ) -> Result<CopyManyBuilder<'_>> {
        Ok(self.copy_list(List::Blocks(pairs_of(source, destination, block_bytes)?)))
    }
}

/// Returns the checked pairs.
fn pairs_of(source: Blocks<'_>, destination: Blocks<'_>, bytes: usize) -> Result<PairList> {
    let ((sources, from), (destinations, to)) = (source, destination);
    let invalid = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
    if sources.len() != destinations.len() {
        let (sources, destinations) = (sources.len(), destinations.len());
        return invalid(format!(
            "{sources} source pools and {destinations} destination pools; each layer needs both"
        ));
    }
    if from.len() != to.len() {
        let (from, to) = (from.len(), to.len());
        return invalid(format!("{from} source blocks and {to} destination blocks; each block needs both"));
    }
    if bytes == 0 {
        return invalid("blocks of 0 bytes; a block has at least 1".to_owned());
    }
    if sources.is_empty() {
        // No pool bounds the indices.
        return Ok(PairList::default());
    }
    check_within("source", source, bytes)?;
    check_within("destination", destination, bytes)?;
    check_unique(to)?;
    let mut pairs = PairList::try_with_capacity(sources.len().saturating_mul(from.len()))?;
    for pools in sources.iter().zip(destinations) {
        pairs.add(pools, bytes, from.iter().zip(to).map(|(from, to)| (from * bytes, to * bytes)))?;
    }
    Ok(pairs)
}

fn check_within(side: &str, (pools, indices): Blocks<'_>, bytes: usize) -> Result<()> {
    let Some(blocks) = pools.iter().map(|pool| pool.len() / bytes).min() else { return Ok(()) };
    // Of all at once: finding the first would take longer.
    if indices.iter().max().is_none_or(|last| *last < blocks) {
        return Ok(());
    }
    let position = indices.iter().position(|index| *index >= blocks).unwrap_or_default();
    let index = indices.get(position).copied().unwrap_or_default();
    let text = format!(
        "{side} block {index}, at position {position}, is not in each pool: the smallest has {blocks} blocks of {bytes} bytes; use an index below {blocks}"
    );
    Err(Error::new(ErrorKind::OutOfRange, text))
}

/// Checks that no block is written twice.
fn check_unique(to: &[usize]) -> Result<()> {
    let Some(position) = first_repeated(to) else { return Ok(()) };
    let index = to.get(position).copied().unwrap_or_default();
    let first = to.iter().position(|other| *other == index).unwrap_or_default();
    let text = format!(
        "destination block {index} is given twice, at positions {first} and {position}; give each block once"
    );
    Err(Error::new(ErrorKind::Overlap, text))
}

/// Returns the first position whose index came before: by a bitmap, or by sorting where that would be much longer than the indices.
fn first_repeated(indices: &[usize]) -> Option<usize> {
    let words = indices.iter().max().map_or(0, |last| last / 64 + 1);
    if words > 2 * indices.len() + 64 {
        let mut sorted: Vec<_> = indices.iter().copied().zip(0_usize..).collect();
        sorted.sort_unstable();
        let pairs = sorted.iter().zip(sorted.iter().skip(1));
        return pairs.filter(|(one, next)| one.0 == next.0).map(|(_, next)| next.1).min();
    }
    let mut seen = vec![0_u64; words];
    indices.iter().position(|index| {
        seen.get_mut(index / 64).is_some_and(|word| {
            let bit = 1 << (index % 64);
            mem::replace(word, *word | bit) & bit != 0
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_repeated_index_is_found_however_far_apart_they_are() {
        for far in [7, 64, 1 << 20, usize::MAX] {
            assert_eq!(first_repeated(&[3, far, 5, 0]), None);
            assert_eq!(first_repeated(&[3, far, 5, 0, far, 5]), Some(4), "{far}");
            assert_eq!(first_repeated(&[3, 5, far, 5, far]), Some(3), "{far}");
        }
        assert_eq!(first_repeated(&[]), None);
    }
}
