//! Reads a file through a ring of staging buffers to the device: chunks are read while earlier ones are in flight. For
//! host destinations there is no ring: chunks are read in place.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use transload_core::{ErrorKind, MemoryKind, RawBuffer, Result, Transfer};
use transload_transfer::{CrossBackendTransferManager, StagingMemory};

use super::{
    hashes::Hashes,
    header::Header,
    layout::Chunk,
    options::{LoadOptions, LoadPhase},
    placement::TensorPlacement,
    readers::{self, ChunkRead, Readers},
    report::LoadReport,
    source::Source,
};
use crate::staging;

/// The staging ring of a load; empty if chunks are read in place.
pub(super) struct Pipeline<'a> {
    pub(super) manager: &'a CrossBackendTransferManager,
    pub(super) placement: &'a TensorPlacement,
    pub(super) options: &'a LoadOptions,
    pub(super) ring: VecDeque<RingBuffer>,
    pub(super) chunk: usize,
    /// Maximum number of chunks read concurrently in place; 0 with a ring.
    in_place_limit: usize,
}

/// A chunk that is being read, into a staging buffer or in place.
struct PendingChunk {
    chunk: Chunk,
    slot: Option<RingBuffer>,
    target: RawBuffer,
    reading: ChunkRead,
}

/// A staging buffer, and the transfer that uses it.
pub(super) struct RingBuffer {
    pub(super) buffer: StagingMemory,
    pub(super) transfer: Option<Transfer>,
}

impl<'a> Pipeline<'a> {
    /// Allocates the ring.
    ///
    /// # Errors
    /// The backend's.
    pub(super) fn new(
        manager: &'a CrossBackendTransferManager,
        placement: &'a TensorPlacement,
        options: &'a LoadOptions,
    ) -> Result<Self> {
        let longest = placement.layout.segments.iter().copied().max().unwrap_or(1);
        let chunk = options.chunk.min(longest);
        let most = placement.layout.chunks(chunk).take(options.buffers).count();
        let no_ring = options.place.device.is_cpu() && options.staging.is_none();
        let (in_place_limit, count) = if no_ring { (most, 0) } else { (0, most) };
        let ring = |kind| ring(manager, options, kind, count, chunk);
        let ring = match options.staging {
            Some(kind) => ring(kind)?,
            None => staging::pinned_or_pageable(manager, options.place.device, ring)?,
        };
        Ok(Self { manager, placement, options, ring, chunk, in_place_limit })
    }

    /// Returns a report without times and methods.
    pub(super) fn report(&self, header: &Header, source: &Source) -> LoadReport {
        let devices = self.manager.devices();
        let device = self.options.place.device;
        LoadReport {
            place: self.options.place,
            bytes: header.bytes,
            file_bytes: source.len(),
            tensors: header.tensors.len(),
            segments: self.placement.segments.len(),
            buffers: self.ring.len(),
            buffer_bytes: self.chunk,
            staging: self.ring.front().map(|slot| slot.buffer.place().kind),
            simulated: devices.iter().any(|info| info.id == device && info.simulated),
            chunks: 0,
            preparing: Duration::ZERO,
            wall: Duration::ZERO,
            verifying: None,
            methods: Vec::new(),
        }
    }

    /// Transfers all tensors and waits for them. Returns their hashes if requested.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], errors of the backend. Transfers may still be in flight then (see
    /// [`wait_all`](Self::wait_all)); reads are not.
    pub(super) fn send(
        &mut self,
        header: &Header,
        source: &Arc<Source>,
        report: &mut LoadReport,
    ) -> Result<Option<Vec<u64>>> {
        let threads = readers::thread_count(self.options.readers, header.bytes, self.manager.executor());
        let hashes = self.send_chunks(
            &Readers::new(self.manager.executor(), source, threads, self.chunk),
            header,
            report,
        )?;
        source.check_unchanged()?;
        Ok(hashes)
    }

    fn send_chunks(
        &mut self,
        readers: &Readers,
        header: &Header,
        report: &mut LoadReport,
    ) -> Result<Option<Vec<u64>>> {
        let mut hashes = self.options.checksum.then(|| Hashes::new(header.tensors.len()));
        let mut chunks = self.placement.layout.chunks(self.chunk).peekable();
        let mut pending: VecDeque<PendingChunk> = VecDeque::new();
        let (mut begun, mut sent) = (header.data, 0);
        loop {
            // Read into every free buffer. Wait for one in flight only if nothing is being read.
            while chunks.peek().is_some()
                && let Some(slot) = self.next_target(pending.len(), report)?
            {
                let Some(chunk) = chunks.next() else { break };
                let target = match &slot {
                    Some(slot) => slot.buffer.slice(..chunk.len)?,
                    None => self.in_place_target(&chunk)?,
                };
                let reading = readers.begin(&chunk, begun, &target)?;
                begun += chunk.bytes();
                pending.push_back(PendingChunk { chunk, slot, target, reading });
            }
            let Some(PendingChunk { chunk, slot, target, reading }) = pending.pop_front() else { break };
            reading.finish()?;
            if let Some(hashes) = &mut hashes {
                let view = target.read()?;
                for part in &chunk.parts {
                    hashes.update(part.tensor, view.get(part.at..part.at + part.len).unwrap_or_default());
                }
            }
            match slot {
                Some(mut slot) => {
                    let segment = self.placement.segment(chunk.segment)?;
                    let (manager, options) = (self.manager, &self.options.transfer);
                    let place = segment.slice(chunk.offset..chunk.offset + chunk.len)?;
                    let transfer = manager.copy(&target, &place).options(*options).submit();
                    slot.transfer = Some(transfer);
                    self.ring.push_back(slot);
                }
                None => report.chunks += 1,
            }
            sent += chunk.bytes();
            self.options.report_progress(LoadPhase::Sending, sent, header.bytes)?;
        }
        for slot in &mut self.ring {
            slot.finish(report)?;
        }
        Ok(hashes.map(Hashes::finish))
    }

    /// Returns where to read the next chunk, if that is possible now: a staging buffer, or `Some(None)` for in place.
    fn next_target(
        &mut self,
        under_way: usize,
        report: &mut LoadReport,
    ) -> Result<Option<Option<RingBuffer>>> {
        let Some(oldest) = self.ring.front() else {
            return Ok((under_way < self.in_place_limit).then_some(None));
        };
        if under_way > 0 && oldest.transfer.as_ref().is_some_and(|transfer| !transfer.is_complete()) {
            return Ok(None);
        }
        let Some(mut slot) = self.ring.pop_front() else { return Ok(None) };
        slot.finish(report)?;
        Ok(Some(Some(slot)))
    }

    /// Returns the memory of a chunk at its destination.
    pub(super) fn in_place_target(&self, chunk: &Chunk) -> Result<RawBuffer> {
        self.placement.segment(chunk.segment)?.slice(chunk.offset..chunk.offset + chunk.len)
    }

    /// Waits for all transfers, whatever their results, and frees the ring.
    pub(super) fn wait_all(&mut self) {
        for transfer in self.ring.drain(..).filter_map(|slot| slot.transfer) {
            // An error was returned already; after success, nothing is left here.
            let _returned_already = transfer.wait();
        }
    }
}

impl RingBuffer {
    /// Waits for the buffer's transfer, if any, and counts it.
    fn finish(&mut self, report: &mut LoadReport) -> Result<()> {
        if let Some(transfer) = self.transfer.take() {
            report.count(&transfer.wait()?);
        }
        Ok(())
    }
}

/// Allocates `count` buffers, or fewer if memory is short, but at least two.
fn ring(
    manager: &CrossBackendTransferManager,
    options: &LoadOptions,
    kind: MemoryKind,
    count: usize,
    bytes: usize,
) -> Result<VecDeque<RingBuffer>> {
    let mut ring = VecDeque::with_capacity(count);
    while ring.len() < count {
        match manager.allocate_staging(options.place.device, kind, bytes) {
            Ok(buffer) => ring.push_back(RingBuffer { buffer, transfer: None }),
            // One is read while the other is in flight.
            Err(error) if error.kind() == ErrorKind::OutOfMemory && ring.len() >= 2 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(ring)
}
