//! A file's bytes through a small ring of host buffers to a device, and back to be compared.
//!
//! Up: a piece is read from the file while earlier ones are in flight. Down: the file is read again while pieces are in
//! flight, and each is compared when it has arrived. Memory is bounded by the ring and one piece more.

use std::{
    collections::VecDeque,
    io::{Read, Seek},
    time::{Duration, Instant},
};

use transload::{
    CrossBackendTransferManager, DeviceId, ErrorKind, MemoryKind, Place, RawBuffer, Runtime, Timing,
    Transfer, TransferMethod, TransferOptions,
};

use super::{file::Source, progress::Progress};
use crate::exit::{Exit, Failure};

/// Two pieces in flight keep a link busy while a third is read; the fourth takes up a slow read.
const SLOTS: u64 = 4;

/// The ring, and the memory on the device.
pub(super) struct Pipeline<'a> {
    manager: &'a CrossBackendTransferManager,
    there: RawBuffer,
    ring: VecDeque<Slot>,
    chunk: usize,
}

struct Slot {
    buffer: RawBuffer,
    transfer: Option<Transfer>,
}

/// How one direction went.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leg {
    /// Of the whole pipeline, the file's reading included.
    pub(super) wall: Duration,
    /// The sum of the copies' times by their lanes' clock, where every one was measured.
    pub(super) moving: Option<Duration>,
    /// The rate of the fastest one, in bytes per second.
    pub(super) best: Option<f64>,
    /// Whether that clock is the host's: a lane of the host did the work.
    pub(super) timed_on_host: bool,
    pub(super) chunks: u64,
    /// Of the last piece.
    pub(super) method: Option<TransferMethod>,
}

impl Leg {
    fn finish(&mut self, slot: &mut Slot) -> Result<(), Failure> {
        let Some(transfer) = slot.transfer.take() else { return Ok(()) };
        let report = transfer.wait()?;
        let so_far = if self.chunks == 0 { Some(Duration::ZERO) } else { self.moving };
        self.moving = so_far.zip(report.moving).map(|(sum, moving)| sum + moving);
        self.best = self.best.into_iter().chain(report.bytes_per_second()).reduce(f64::max);
        self.timed_on_host |= report.lane.is_cpu();
        self.chunks += 1;
        self.method = Some(report.method);
        Ok(())
    }
}

impl<'a> Pipeline<'a> {
    /// Allocates `len` bytes at `to`, and a ring of buffers of `kind` of at most `chunk` bytes each.
    pub(super) fn new(
        runtime: &'a Runtime,
        to: Place,
        len: usize,
        chunk: u64,
        kind: MemoryKind,
    ) -> Result<Self, Failure> {
        let manager = runtime.manager();
        let there = manager.allocate(to.device, to.kind, len)?;
        let chunk = usize::try_from(chunk).unwrap_or(usize::MAX).min(len);
        let slots = (len as u64).div_ceil(chunk as u64).min(SLOTS);
        let buffer = || match kind {
            // Pinned by the device that will copy it.
            MemoryKind::Pinned if !to.device.is_cpu() => manager.allocate_for(to.device, kind, chunk),
            _ => manager.allocate(DeviceId::Cpu, kind, chunk),
        };
        let slot = |_| buffer().map(|buffer| Slot { buffer, transfer: None });
        let ring = (0..slots).map(slot).collect::<Result<_, _>>().map_err(|error| {
            let valid = match error.kind() {
                ErrorKind::OutOfMemory => "a smaller --chunk needs less",
                _ => "--pageable works everywhere",
            };
            let what = format!("cannot allocate {slots} × {chunk} bytes of {kind} memory ({valid})");
            Failure::from(error).during(&what)
        })?;
        Ok(Self { manager, there, ring, chunk })
    }

    /// How many buffers of how many bytes, of which kind.
    pub(super) fn ring(&self) -> (usize, usize, Option<MemoryKind>) {
        (self.ring.len(), self.chunk, self.ring.front().map(|slot| slot.buffer.place().kind))
    }

    /// Offsets and sizes of the pieces.
    fn pieces(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (len, chunk) = (self.there.len(), self.chunk);
        (0..len).step_by(chunk).map(move |offset| (offset, chunk.min(len - offset)))
    }

    /// Sends the file from its beginning.
    pub(super) fn send<R: Read + Seek>(
        &mut self,
        source: &mut Source<R>,
        progress: &Progress,
    ) -> Result<Leg, Failure> {
        let options = TransferOptions::new().timing(Timing::Measured);
        let mut leg = Leg::default();
        let begun = Instant::now();
        source.rewind()?;
        for (offset, size) in self.pieces() {
            let Some(mut slot) = self.ring.pop_front() else { break };
            leg.finish(&mut slot)?;
            source.fill(&mut slot.buffer.slice(..size)?.write()?, offset as u64)?;
            slot.transfer =
                Some(self.manager.transfer_with(&slot.buffer, &self.there, 0, offset, size, &options));
            self.ring.push_back(slot);
            progress.advance(size);
        }
        for slot in &mut self.ring {
            leg.finish(slot)?;
        }
        leg.wall = begun.elapsed();
        Ok(leg)
    }

    /// Reads everything back and compares it with the file, read again.
    pub(super) fn receive<R: Read + Seek>(
        &mut self,
        source: &mut Source<R>,
        progress: &Progress,
    ) -> Result<Leg, Failure> {
        let expected = self.manager.allocate(DeviceId::Cpu, MemoryKind::Pageable, self.chunk)?;
        let mut leg = Leg::default();
        let begun = Instant::now();
        source.rewind()?;
        let mut ahead = self.pieces();
        let mut ring = std::mem::take(&mut self.ring);
        for slot in &mut ring {
            slot.transfer = self.fetch(slot, ahead.next());
        }
        for (offset, size) in self.pieces() {
            let Some(mut slot) = ring.pop_front() else { break };
            let expected = expected.slice(..size)?;
            source.fill(&mut expected.write()?, offset as u64)?;
            leg.finish(&mut slot)?;
            compare(&expected.read()?, &slot.buffer.slice(..size)?.read()?, offset)?;
            slot.transfer = self.fetch(&slot, ahead.next());
            ring.push_back(slot);
            progress.advance(size);
        }
        leg.wall = begun.elapsed();
        self.ring = ring;
        Ok(leg)
    }

    fn fetch(&self, slot: &Slot, piece: Option<(usize, usize)>) -> Option<Transfer> {
        let options = TransferOptions::new().timing(Timing::Measured);
        let (offset, size) = piece?;
        Some(self.manager.transfer_with(&self.there, &slot.buffer, offset, 0, size, &options))
    }

    /// The memory on the device.
    #[cfg(test)]
    pub(super) fn there(&self) -> &RawBuffer {
        &self.there
    }
}

fn compare(expected: &[u8], found: &[u8], offset: usize) -> Result<(), Failure> {
    if expected == found {
        return Ok(());
    }
    let first = expected.iter().zip(found).position(|(expected, found)| expected != found).unwrap_or(0);
    let byte = |bytes: &[u8]| bytes.get(first).copied().unwrap_or(0);
    let text = format!(
        "verification failed at offset {}: {:#04x} in the file, {:#04x} came back; do not trust this path",
        offset + first,
        byte(expected),
        byte(found)
    );
    Err(Failure::new(Exit::Differs, text))
}
