//! Pinned buffers through which a queue copies host memory that is not its device's: 16 MiB for each device, and at most two more for
//! each thread that copies just then.

use std::{collections::VecDeque, ptr::NonNull, sync::Arc};

use parking_lot::Mutex;
use transload_core::{Error, ErrorKind, MemoryKind, Result, mutant};

use super::{
    Submissions,
    copy::copy_bytes,
    state::Line,
    storage::{Counters, WgpuStorage},
};

/// Bytes of a buffer.
pub(crate) const CAPACITY: usize = 1 << 20;
/// Most buffers that are kept.
const MOST: usize = 16;

/// The buffers that no thread has taken, each with the point until which the device uses it.
#[derive(Default)]
pub(crate) struct StagingPool {
    buffers: Mutex<VecDeque<(u64, WgpuStorage)>>,
    /// Whether memory is short.
    #[cfg(test)]
    pub(crate) is_refused: std::sync::atomic::AtomicBool,
}

impl StagingPool {
    /// Takes a buffer that the device does not use. Waits for one only if as many as are kept are in flight, or memory is short.
    ///
    /// # Errors
    /// Those of an allocation.
    pub(crate) fn take(&self, queue: &Submissions, counters: &Arc<Counters>) -> Result<WgpuStorage> {
        loop {
            let mut buffers = self.buffers.lock();
            let is_idle = |point: u64| queue.reached() >= point || mutant!("wgpu/staging-in-flight");
            let oldest = buffers.front().map(|(point, _)| *point);
            if oldest.is_some_and(|point| !is_idle(point)) {
                queue.refresh();
            }
            if oldest.is_some_and(is_idle)
                && let Some((_, buffer)) = buffers.pop_front()
            {
                return Ok(buffer);
            }
            let is_full = buffers.len() >= MOST;
            drop(buffers);
            match oldest {
                Some(point) if is_full => queue.block_until(point),
                _ => match (self.allocate(queue, counters), oldest) {
                    (Err(error), Some(point)) if error.kind() == ErrorKind::OutOfMemory => {
                        queue.block_until(point);
                    }
                    (allocated, _) => return allocated,
                },
            }
        }
    }

    /// Takes a buffer that the device does not use, without waiting. `None` if as many as are kept are in flight, or memory is short.
    pub(crate) fn try_take(&self, queue: &Submissions, counters: &Arc<Counters>) -> Option<WgpuStorage> {
        let mut buffers = self.buffers.lock();
        let is_idle =
            |(point, _): &mut (u64, WgpuStorage)| queue.reached() >= *point || queue.refresh() >= *point;
        if let Some((_, buffer)) = buffers.pop_front_if(is_idle) {
            return Some(buffer);
        }
        let is_full = buffers.len() >= MOST;
        drop(buffers);
        if is_full { None } else { self.allocate(queue, counters).ok() }
    }

    fn allocate(&self, queue: &Submissions, counters: &Arc<Counters>) -> Result<WgpuStorage> {
        #[cfg(test)]
        if self.is_refused.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::OutOfMemory, "planted"));
        }
        WgpuStorage::allocate(&queue.vulkan, MemoryKind::Pinned, CAPACITY, counters)
    }

    /// Returns a buffer that the device uses until a point. Frees the oldest if there are more than are kept, as there are if many
    /// threads had taken some.
    pub(crate) fn put(&self, queue: &Submissions, point: u64, buffer: WgpuStorage) {
        let mut buffers = self.buffers.lock();
        // Usually the last.
        let at = buffers.iter().rposition(|(other, _)| *other <= point).map_or(0, |before| before + 1);
        buffers.insert(at, (point, buffer));
        let is_spare = |(point, _): &mut (u64, WgpuStorage)| *point <= queue.reached();
        let spare = if buffers.len() > MOST { buffers.pop_front_if(is_spare) } else { None };
        drop(buffers);
        drop(spare);
    }

    /// Frees the buffers that the device does not use.
    pub(crate) fn release(&self, queue: &Submissions) {
        let reached = queue.refresh();
        let mut buffers = self.buffers.lock();
        let used = buffers.partition_point(|(point, _)| *point <= reached);
        let idle: Vec<_> = buffers.drain(..used).collect();
        drop(buffers);
        drop(idle);
    }

    /// Returns the bytes of the buffers.
    pub(crate) fn bytes(&self) -> u64 {
        (self.buffers.lock().len() * CAPACITY) as u64
    }
}

/// A staging buffer that is being filled.
pub(super) struct Chunk {
    pub(super) buffer: WgpuStorage,
    pub(super) address: NonNull<u8>,
    pub(super) used: usize,
    /// Host memory to copy to when the device has written the buffer: address, offset in the buffer, bytes.
    pub(super) downloads: Vec<(NonNull<u8>, usize, usize)>,
}

impl Line {
    /// Copies a chunk to its destinations.
    pub(super) fn download(&self, (point, chunk): (u64, Chunk)) -> Result<()> {
        let Chunk { buffer, address, downloads, .. } = chunk;
        if !mutant!("wgpu/download-waits") {
            self.queue.block_until(point);
        }
        let outcome = self.queue.outcome(point);
        if outcome.is_ok() {
            for (to, at, bytes) in downloads {
                // SAFETY: the destination is claimed by the operation in progress and as long; the device has written the buffer.
                unsafe { copy_bytes(address.add(at), to, bytes) };
            }
        }
        self.staging.put(&self.queue, point, buffer);
        outcome
    }

    pub(super) fn take_staging(&self, counters: &Arc<Counters>) -> Result<Chunk> {
        let buffer = self.staging.take(&self.queue, counters)?;
        let device = self.queue.device();
        let unmapped = || Error::new(ErrorKind::Device, format!("{device}: pinned memory is not mapped"));
        let address = buffer.memory().address().ok_or_else(unmapped)?;
        Ok(Chunk { buffer, address, used: 0, downloads: Vec::new() })
    }
}

#[cfg(test)]
#[path = "../../tests/unit/short_of_memory.rs"]
mod tests;
