//! The file through a small ring of host buffers to the device: a chunk is read while earlier ones are in flight.

use std::collections::VecDeque;

use transload_core::{DeviceId, ErrorKind, MemoryKind, RawBuffer, Result, Transfer};
use transload_transfer::CrossBackendTransferManager;

use super::{
    hashes::Hashes,
    header::Header,
    layout::Chunk,
    options::{LoadOptions, LoadPhase},
    placing::Placed,
    report::LoadReport,
    source::Source,
};

/// The ring, and what it is for.
pub(super) struct Pipeline<'a> {
    pub(super) manager: &'a CrossBackendTransferManager,
    pub(super) placed: &'a Placed,
    pub(super) options: &'a LoadOptions,
    pub(super) ring: VecDeque<Slot>,
    pub(super) chunk: usize,
}

/// A buffer of the ring, and the transfer that uses it.
pub(super) struct Slot {
    pub(super) buffer: RawBuffer,
    pub(super) transfer: Option<Transfer>,
}

impl<'a> Pipeline<'a> {
    /// Allocates the ring.
    ///
    /// # Errors
    /// The backend's.
    pub(super) fn new(
        manager: &'a CrossBackendTransferManager,
        placed: &'a Placed,
        options: &'a LoadOptions,
    ) -> Result<Self> {
        let longest = placed.layout.segments.iter().copied().max().unwrap_or(1);
        let chunk = options.wanted_chunk().min(longest);
        let count = placed.layout.chunks(chunk).take(options.wanted_buffers()).count();
        let ring = |kind| ring(manager, options, kind, count, chunk);
        let ring = match options.wanted_staging() {
            Some(kind) => ring(kind)?,
            None if offers_pinned(manager, options.wanted_place().device) => match ring(MemoryKind::Pinned) {
                Err(error) if error.kind() == ErrorKind::OutOfMemory => ring(MemoryKind::Pageable)?,
                outcome => outcome?,
            },
            None => ring(MemoryKind::Pageable)?,
        };
        Ok(Self { manager, placed, options, ring, chunk })
    }

    /// What is known before anything is moved.
    pub(super) fn report(&self, header: &Header, source: &Source) -> LoadReport {
        let devices = self.manager.devices();
        let device = self.options.wanted_place().device;
        LoadReport {
            place: self.options.wanted_place(),
            bytes: header.bytes,
            file_bytes: source.len(),
            tensors: header.tensors.len(),
            segments: self.placed.segments.len(),
            buffers: self.ring.len(),
            buffer_bytes: self.chunk,
            staging: self.ring.front().map(|slot| slot.buffer.place().kind),
            simulated: devices.iter().any(|info| info.id == device && info.simulated),
            ..LoadReport::default()
        }
    }

    /// Sends all tensors, from where the source stands. When it returns Ok they are in place; answers their hashes where
    /// they are wanted.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], the backend's. Chunks may still be in flight: see [`settle`](Self::settle).
    pub(super) fn send(
        &mut self,
        header: &Header,
        source: &mut Source,
        report: &mut LoadReport,
    ) -> Result<Option<Vec<u64>>> {
        let mut hashes = self.options.wants_checksum().then(|| Hashes::new(header.tensors.len()));
        let mut sent = 0;
        for chunk in self.placed.layout.chunks(self.chunk) {
            let Some(mut slot) = self.ring.pop_front() else { break };
            slot.finish(report)?;
            sent += read(source, &slot.buffer, &chunk, hashes.as_mut())?;
            let segment = self.placed.segment(chunk.segment)?;
            let options = self.options.wanted_transfer();
            let Chunk { offset, len, .. } = chunk;
            let transfer = self.manager.transfer_with(&slot.buffer, segment, 0, offset, len, options);
            slot.transfer = Some(transfer);
            self.ring.push_back(slot);
            self.options.tell(LoadPhase::Sending, sent, header.bytes);
        }
        for slot in &mut self.ring {
            slot.finish(report)?;
        }
        source.check_unchanged()?;
        Ok(hashes.map(Hashes::finish))
    }

    /// Waits for what is in flight, whatever becomes of it, and gives the ring up.
    pub(super) fn settle(&mut self) {
        for transfer in self.ring.drain(..).filter_map(|slot| slot.transfer) {
            // There is an error already, or this one would have been seen.
            let _ = transfer.wait();
        }
    }
}

impl Slot {
    /// Waits for the transfer that uses the buffer, if one does, and counts it.
    fn finish(&mut self, report: &mut LoadReport) -> Result<()> {
        if let Some(transfer) = self.transfer.take() {
            report.count(&transfer.wait()?);
        }
        Ok(())
    }
}

/// Reads what a chunk holds of the file into a buffer, with zeros between tensors. Answers how many bytes were read.
fn read(
    source: &mut Source,
    buffer: &RawBuffer,
    chunk: &Chunk,
    mut hashes: Option<&mut Hashes>,
) -> Result<u64> {
    let piece = buffer.slice(..chunk.len)?;
    let mut view = piece.write()?;
    let (mut end, mut bytes) = (0, 0);
    for part in &chunk.parts {
        view.get_mut(end..part.at).unwrap_or_default().fill(0);
        end = part.at + part.len;
        let part_of = view.get_mut(part.at..end).unwrap_or_default();
        source.fill(part_of)?;
        if let Some(hashes) = &mut hashes {
            hashes.update(part.tensor, part_of);
        }
        bytes += part.len as u64;
    }
    Ok(bytes)
}

fn offers_pinned(manager: &CrossBackendTransferManager, device: DeviceId) -> bool {
    manager.devices().iter().any(|info| info.id == device && info.kinds.contains(&MemoryKind::Pinned))
}

fn ring(
    manager: &CrossBackendTransferManager,
    options: &LoadOptions,
    kind: MemoryKind,
    count: usize,
    bytes: usize,
) -> Result<VecDeque<Slot>> {
    let device = options.wanted_place().device;
    let buffer = |_| {
        // Pinned by the device that will copy it.
        let made = match kind {
            MemoryKind::Pinned | MemoryKind::Mapped if !device.is_cpu() => {
                manager.allocate_for(device, kind, bytes)
            }
            _ => manager.allocate(DeviceId::Cpu, kind, bytes),
        };
        made.map(|buffer| Slot { buffer, transfer: None })
    };
    (0..count).map(buffer).collect()
}
