//! Verifies a load: reads device memory back through the ring, or host memory in place, and compares it with the file
//! or with hashes.

use std::mem;

use transload_core::{Error, ErrorKind, Result, Transfer};

use super::{
    entries::quoted, hashes::Hashes, header::Header, layout::Chunk, options::LoadPhase, pipeline::Pipeline,
    source::Source,
};

impl Pipeline<'_> {
    /// Reads all tensors back. Compares them with the file if requested, and their hashes with `sent` if given.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupted`] if anything differs, [`ErrorKind::Io`], [`ErrorKind::OutOfMemory`], errors of the backend. Transfers may still be
    /// in flight.
    pub(super) fn read_back(
        &mut self,
        header: &Header,
        source: &Source,
        sent: &Option<Vec<u64>>,
    ) -> Result<()> {
        let again = self.options.verify;
        let mut offset = header.data;
        let mut expected = Vec::new();
        if again {
            let text = || format!("no memory for {} bytes of the file; use shorter chunks", self.chunk);
            expected
                .try_reserve_exact(self.chunk)
                .map_err(|error| Error::caused_by(ErrorKind::OutOfMemory, text(), error))?;
            expected.resize(self.chunk, 0);
        }
        let mut hashes = sent.as_ref().map(|_| Hashes::new(header.tensors.len()));
        let mut done = vec![0; header.tensors.len()];
        let mut checked = 0;
        let mut ahead = self.placement.layout.chunks(self.chunk);
        for index in 0..self.ring.len() {
            let transfer = ahead.next().map(|chunk| self.fetch(index, &chunk)).transpose()?;
            if let Some(slot) = self.ring.get_mut(index) {
                slot.transfer = transfer;
            }
        }
        for chunk in self.placement.layout.chunks(self.chunk) {
            // Keep it in the ring, so that its transfer is waited for also after an error.
            let piece = match self.ring.first_mut() {
                Some(slot) => {
                    slot.finish()?;
                    slot.buffer.slice(..chunk.len)?
                }
                None => self.in_place_target(&chunk)?,
            };
            let view = piece.read()?;
            let bytes = chunk.bytes();
            let mut expected = expected.get_mut(..bytes as usize).unwrap_or_default();
            source.read_exact_at(offset, expected)?;
            offset += bytes;
            for part in &chunk.parts {
                let found = view.get(part.at..part.at + part.len).unwrap_or_default();
                if let Some(hashes) = &mut hashes {
                    hashes.update(part.tensor, found);
                }
                let so_far = done.get_mut(part.tensor);
                if let Some((first, others)) =
                    mem::take(&mut expected).split_at_mut_checked(part.len).filter(|_| again)
                {
                    expected = others;
                    compare(header, part.tensor, so_far.as_deref().copied().unwrap_or(0), first, found)?;
                }
                so_far.into_iter().for_each(|so_far| *so_far += part.len);
            }
            checked += bytes;
            drop(view);
            if !self.ring.is_empty() {
                let transfer = ahead.next().map(|chunk| self.fetch(0, &chunk)).transpose()?;
                self.ring.rotate_left(1);
                if let Some(slot) = self.ring.last_mut() {
                    slot.transfer = transfer;
                }
            }
            self.options.report_progress(LoadPhase::ReadingBack, checked, header.bytes)?;
        }
        source.check_unchanged()?;
        match (sent, hashes.map(Hashes::finish)) {
            (Some(sent), Some(found)) => compare_hashes(header, sent, &found),
            _ => Ok(()),
        }
    }

    /// Starts a transfer of a chunk into a staging buffer.
    fn fetch(&self, slot: usize, chunk: &Chunk) -> Result<Transfer> {
        let missing = || Error::new(ErrorKind::OutOfRange, format!("the ring has no buffer {slot}"));
        let buffer = &self.ring.get(slot).ok_or_else(missing)?.buffer;
        let segment = self.placement.segment(chunk.segment)?;
        let options = &self.options.transfer;
        let (from, to) = (segment.slice(chunk.offset..chunk.offset + chunk.len)?, buffer.slice(..chunk.len)?);
        Ok(self.manager.copy(&from, &to).options(*options).submit())
    }
}

fn compare(header: &Header, tensor: usize, offset: usize, expected: &[u8], found: &[u8]) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let first = expected.iter().zip(found).position(|(expected, found)| expected != found).unwrap_or(0);
    let byte = |bytes: &[u8]| bytes.get(first).copied().unwrap_or(0);
    let text = format!(
        "tensor {} differs at byte {}: {:#04x} in the file, {:#04x} read back; this path corrupts data",
        name(header, tensor),
        offset + first,
        byte(expected),
        byte(found)
    );
    Err(Error::new(ErrorKind::Corrupted, text))
}

fn compare_hashes(header: &Header, sent: &[u64], found: &[u64]) -> Result<()> {
    let differs = sent.iter().zip(found).enumerate().find(|(_, (sent, found))| sent != found);
    let Some((tensor, (sent, found))) = differs else { return Ok(()) };
    let text = format!(
        "tensor {} has checksum {sent:016x} in the file, {found:016x} read back; this path corrupts data",
        name(header, tensor)
    );
    Err(Error::new(ErrorKind::Corrupted, text))
}

fn name(header: &Header, tensor: usize) -> String {
    header.tensors.get(tensor).map(|entry| quoted(&entry.name)).unwrap_or_default()
}
