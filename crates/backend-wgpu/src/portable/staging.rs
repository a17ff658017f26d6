//! Buffers that the host maps, through which a queue copies host memory: for each direction 8 MiB for each device, and at most two more
//! for each thread that copies just then. They are mapped again and again, since wgpu zeroes new ones.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use transload_core::{Error, ErrorKind, Result};
use wgpu::{BufferUsages, BufferView, BufferViewMut, MapMode};

use super::{
    Submissions,
    storage::{Counters, PortableStorage},
};

/// Bytes of a buffer; a multiple of 8, as mapped ranges are.
pub(super) const CAPACITY: usize = 1 << 20;
/// Most buffers of a direction that are kept.
const MOST: usize = 8;

/// A buffer that submissions use until a point, after which it is mapped.
struct Staging {
    storage: PortableStorage,
    point: u64,
}

impl Staging {
    fn new(queue: &Submissions, counters: &Arc<Counters>, usage: BufferUsages) -> Result<Self> {
        let descriptor = wgpu::BufferDescriptor {
            label: None,
            size: CAPACITY as u64,
            usage,
            mapped_at_creation: usage.contains(BufferUsages::MAP_WRITE),
        };
        let buffer = queue.captured(|| queue.device.create_buffer(&descriptor))?;
        Ok(Self { storage: PortableStorage::new(buffer, CAPACITY, counters), point: 0 })
    }

    /// Has it be mapped after a submission, which has been made.
    fn map_after(&mut self, point: u64, mode: MapMode) {
        self.point = point;
        self.storage.buffer.map_async(mode, .., |_outcome| {});
    }

    /// Returns what `view` does of a buffer that is mapped, once it is.
    ///
    /// # Errors
    /// The loss of the device; [`ErrorKind::Device`] if wgpu did not map it.
    fn mapped<T>(
        &self,
        queue: &Submissions,
        view: impl Fn(&wgpu::Buffer) -> std::result::Result<T, wgpu::MapRangeError>,
    ) -> Result<T> {
        queue.block_until(self.point);
        queue.outcome(self.point)?;
        view(&self.storage.buffer).or_else(|_| {
            // wgpu maps it in the first poll that comes after the submission's end and the call of `map_async`.
            queue.refresh();
            queue.check_alive()?;
            view(&self.storage.buffer).map_err(|error| {
                Error::caused_by(ErrorKind::Device, format!("{}: a buffer is not mapped", queue.id), error)
            })
        })
    }
}

/// A buffer that the host writes, and the device then reads.
pub(super) struct Upload {
    /// Dropped first: the buffer is not unmapped before.
    pub(super) view: BufferViewMut,
    staging: Staging,
}

impl Upload {
    pub(super) fn buffer(&self) -> &wgpu::Buffer {
        &self.staging.storage.buffer
    }

    /// Ends the writing.
    ///
    /// # Errors
    /// Those of [`Submissions::captured`].
    pub(super) fn unmap(self, queue: &Submissions) -> Result<Written> {
        drop(self.view);
        queue.captured(|| self.staging.storage.buffer.unmap())?;
        Ok(Written(self.staging))
    }
}

/// What the host has written.
pub(super) struct Written(Staging);

/// A buffer that the device writes, and the host then reads.
pub(super) struct Download(Staging);

impl Download {
    pub(super) fn buffer(&self) -> &wgpu::Buffer {
        &self.0.storage.buffer
    }

    /// Has the host read it after a submission, which has been made.
    pub(super) fn map_after(&mut self, point: u64) {
        self.0.map_after(point, MapMode::Read);
    }

    /// Waits for the device, and calls `read` with what it has written.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn read(&self, queue: &Submissions, read: impl FnOnce(&BufferView)) -> Result<()> {
        let view = self.0.mapped(queue, |buffer| buffer.get_mapped_range(..))?;
        read(&view);
        drop(view);
        queue.captured(|| self.buffer().unmap())
    }
}

/// The buffers that no thread has taken.
#[derive(Default)]
pub(super) struct StagingPool {
    /// Each is mapped from its point on. Oldest first.
    uploads: Mutex<VecDeque<Staging>>,
    /// None is mapped.
    downloads: Mutex<Vec<Download>>,
}

impl StagingPool {
    /// Takes a buffer to write. Waits for one if as many as are kept are in flight, or memory is short.
    ///
    /// # Errors
    /// Those of an allocation; the loss of the device.
    pub(super) fn upload(&self, queue: &Submissions, counters: &Arc<Counters>) -> Result<Upload> {
        let oldest = self.uploads.lock().front().map(|oldest| oldest.point);
        if oldest.is_some_and(|point| point > queue.reached()) {
            queue.refresh();
        }
        let mut uploads = self.uploads.lock();
        let is_full = uploads.len() >= MOST;
        let taken = uploads.pop_front_if(|oldest| is_full || oldest.point <= queue.reached());
        drop(uploads);
        let write = |buffer: &wgpu::Buffer| buffer.get_mapped_range_mut(..);
        let staging = match taken {
            Some(staging) => staging,
            None => match Staging::new(queue, counters, BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC) {
                Ok(staging) => staging,
                Err(error) => self.uploads.lock().pop_front().ok_or(error)?,
            },
        };
        let view = staging.mapped(queue, write)?;
        Ok(Upload { view, staging })
    }

    /// Returns a buffer that the device reads until a point.
    pub(super) fn put_upload(&self, Written(mut staging): Written, point: u64) {
        staging.map_after(point, MapMode::Write);
        let mut uploads = self.uploads.lock();
        let at = uploads.iter().rposition(|other| other.point <= point).map_or(0, |before| before + 1);
        uploads.insert(at, staging);
        let spare = if uploads.len() > MOST { uploads.pop_front() } else { None };
        drop(uploads);
        drop(spare);
    }

    /// Takes a buffer to read.
    ///
    /// # Errors
    /// Those of an allocation.
    pub(super) fn download(&self, queue: &Submissions, counters: &Arc<Counters>) -> Result<Download> {
        let kept = self.downloads.lock().pop();
        match kept {
            Some(kept) => Ok(kept),
            None => {
                Staging::new(queue, counters, BufferUsages::MAP_READ | BufferUsages::COPY_DST).map(Download)
            }
        }
    }

    /// Returns a buffer that was read.
    pub(super) fn put_download(&self, download: Download) {
        let mut downloads = self.downloads.lock();
        if downloads.len() < MOST {
            downloads.push(download);
        }
    }

    /// Frees the buffers.
    pub(super) fn release(&self) {
        let uploads = std::mem::take(&mut *self.uploads.lock());
        let downloads = std::mem::take(&mut *self.downloads.lock());
        drop((uploads, downloads));
    }

    /// Returns the bytes of the buffers.
    pub(super) fn bytes(&self) -> u64 {
        ((self.uploads.lock().len() + self.downloads.lock().len()) * CAPACITY) as u64
    }
}

#[cfg(test)]
#[path = "../../tests/unit/aborted_mapping.rs"]
mod tests;
