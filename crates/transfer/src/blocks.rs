//! Copies of blocks of paged caches: equal parts of pools, chosen by index.

use transload_core::{BlockList, Error, ErrorKind, RawBuffer, Result};

use crate::{CopyManyBuilder, CrossBackendTransferManager, many::Listed};

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
        let ((sources, from), (destinations, to)) = (source, destination);
        if sources.len() != destinations.len() {
            let (sources, destinations) = (sources.len(), destinations.len());
            let text =
                format!("{sources} source pools and {destinations} destination pools; each layer needs both");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let blocks = BlockList::new(sources.iter().zip(destinations), (from, to), block_bytes)?;
        Ok(self.copy_list(Listed::Blocks(Box::new(blocks))))
    }
}
