//! The buffers between which copies are measured, as long as there is memory for.

use transload_core::{DeviceId, Error, ErrorKind, MemoryKind, Place, RawBuffer, Result};

use super::measure::{Run, STEP, ladder};

/// The part of the free memory that one buffer may use.
const OF_FREE: u64 = 8;
/// The same of a device that does not know its memory, in bytes.
const OF_UNKNOWN: u64 = 256 << 20;

impl Run<'_> {
    /// Returns the largest copy between two devices, by their free memory, or if half of it is free.
    pub(super) fn largest(&self, devices: [DeviceId; 2], is_half_free: bool) -> Result<u64> {
        let mut largest = self.options.largest;
        for device in devices {
            largest = largest.min(self.usable(device, is_half_free)?);
        }
        Ok(largest)
    }

    /// Returns the most bytes of a buffer in a device's memory.
    fn usable(&self, device: DeviceId, is_half_free: bool) -> Result<u64> {
        let backend = self.manager.backend(device)?;
        let info = backend.devices().into_iter().find(|info| info.id == device);
        let (total, largest) = info.map_or((None, None), |info| (info.total_memory, info.largest_allocation));
        let known = backend.memory_info(device).ok();
        let memory = match is_half_free {
            true => known.map(|memory| memory.total).or(total).map(|bytes| bytes / 2),
            false => known.map(|memory| memory.free).or(total),
        };
        let usable = memory.map_or(OF_UNKNOWN, |bytes| bytes / OF_FREE);
        Ok(largest.map_or(usable, |largest| usable.min(largest)))
    }

    /// Allocates a buffer in each place, of at most `largest` bytes or as many as there is memory for, and writes to the host's.
    pub(super) fn buffers(&self, a: Place, b: Place, largest: u64) -> Result<(RawBuffer, RawBuffer)> {
        // Pinned memory is made by the device that uses it.
        let allocate = |place: Place, other: Place, bytes| -> Result<RawBuffer> {
            let is_pinned = matches!(place.kind, MemoryKind::Pinned | MemoryKind::Mapped);
            let device = if is_pinned { other.device } else { place.device };
            let buffer = self.manager.allocate_for(device, place.kind, bytes)?;
            if place.device.is_cpu() {
                // Untouched pages would all be the same one.
                buffer.write()?.fill(0x5A);
            }
            Ok(buffer)
        };
        for bytes in ladder(largest).skip(1).collect::<Vec<_>>().into_iter().rev() {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            match allocate(a, b, bytes).and_then(|first| Ok((first, allocate(b, a, bytes)?))) {
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
                outcome => return outcome,
            }
        }
        let text = format!("too little free memory to measure {a} and {b}: {largest} bytes may be used");
        Err(Error::new(ErrorKind::OutOfMemory, text))
    }
}

/// Returns what is missing, if buffers are shorter than they would be with half of the memory free.
pub(super) fn shortage(buffer: &RawBuffer, wanted: u64) -> Option<Error> {
    let bytes = buffer.len() as u64;
    let wanted = ladder(wanted).last().filter(|wanted| bytes < *wanted)?;
    let text = format!(
        "too little memory is free for copies of {} to {wanted} bytes; free some, or measure at most {bytes} bytes",
        bytes * STEP
    );
    Some(Error::new(ErrorKind::OutOfMemory, text))
}
