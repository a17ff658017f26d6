//! How one chunk is moved: by the host between two memories, or through a staging buffer by a queue.

use std::ops::Range;

use transload_core::{
    DeviceId, Error, ErrorKind, Fence, Operation, QueueLease, RawBuffer, Result, Timing,
    host_access::{self, HostAccess},
};

use super::{StagedTransfer, ring::Staging, stream_copy::stream_copy, waits::Waits};
use crate::lost::lost_on;

/// What a staged transfer does.
#[derive(Debug)]
pub(crate) enum Task {
    /// From host memory, through staging buffers, to a device.
    Up(QueueLease),
    /// From a device, through staging buffers, to host memory.
    Down(QueueLease),
    /// From one device, through staging buffers, to another.
    Across(QueueLease, QueueLease),
    /// From host memory into unified memory, which is then moved to its device.
    IntoUnified(QueueLease),
    /// Out of unified memory, which is first moved to the host, into host memory.
    OutOfUnified(QueueLease),
}

impl StagedTransfer {
    /// Moves a chunk of a task that needs no staging buffer.
    pub(super) fn move_by_host(&self, range: Range<usize>) -> Result<()> {
        let (src, dst) = (host_side(&self.src, range.start)?, host_side(&self.dst, range.start)?);
        self.end.writes();
        host_copy(src, dst, range.len());
        Ok(())
    }

    /// Moves a chunk through a staging buffer, which is idle. What still uses the buffer afterwards is set in it.
    pub(super) async fn move_through(
        &self,
        staging: &mut Staging,
        range: Range<usize>,
        waits: Waits<'_>,
    ) -> Result<()> {
        match &self.task {
            Task::Up(queue) => {
                waits.room(&**queue).await;
                self.up(queue, staging, range)
            }
            Task::Down(queue) => {
                waits.room(&**queue).await;
                let copied = self.out_of(queue, staging, range.clone())?;
                let populated = self.fresh.as_ref().and_then(|fresh| fresh.populate(range.clone(), waits));
                let arrived = waits.fence(&copied).await;
                if let Some(populated) = populated {
                    // Where no thread was to be had, the copy makes the pages.
                    let _refused = populated.await;
                }
                arrived?;
                staging.set_busy(None);
                let (_, address) = staging.slice(range.len())?;
                let dst = host_side(&self.dst, range.start)?;
                self.end.writes();
                host_copy(address.as_ptr(), dst, range.len());
                Ok(())
            }
            Task::Across(from, to) => {
                waits.room(&**from).await;
                waits.room(&**to).await;
                let copied = self.out_of(from, staging, range.clone())?;
                if !to.can_wait_for(&copied) {
                    waits.fence(&copied).await.map_err(|error| lost_on(from.device(), error))?;
                }
                self.into(to, staging, range, &[copied])
            }
            Task::IntoUnified(_) | Task::OutOfUnified(_) => self.move_by_host(range),
        }
    }

    fn up(&self, queue: &QueueLease, staging: &mut Staging, range: Range<usize>) -> Result<()> {
        let (_, address) = staging.slice(range.len())?;
        host_copy(host_side(&self.src, range.start)?, address.as_ptr(), range.len());
        self.into(queue, staging, range, &[])
    }

    /// Enqueues the copy of a chunk from the device into the staging buffer.
    fn out_of(&self, queue: &QueueLease, staging: &mut Staging, range: Range<usize>) -> Result<Fence> {
        let _attached = self.attach();
        let (staged, _) = staging.slice(range.len())?;
        let src = self.src.slice(range)?;
        // SAFETY: the staging buffer is the caller's, and busy until the fence is over; the source is claimed for reading
        // until the transfer's end, which waits for the fence; both lengths are the range's.
        let copied = unsafe { queue.enqueue(&Operation::Copy { src: &src, dst: &staged }, &[], Timing::Off) }
            .map_err(|error| lost_on(queue.device(), error))?;
        staging.set_busy(Some(copied.clone()));
        if !transload_core::mutant!("transfer/keeps-first-half") {
            self.keep(copied.clone());
        }
        Ok(copied)
    }

    /// Enqueues the copy of a chunk from the staging buffer to the device, behind `after`.
    fn into(
        &self,
        queue: &QueueLease,
        staging: &mut Staging,
        range: Range<usize>,
        after: &[Fence],
    ) -> Result<()> {
        let _attached = self.attach();
        let (staged, _) = staging.slice(range.len())?;
        let dst = self.dst.slice(range)?;
        // SAFETY: as in `out_of`; the destination is claimed for writing.
        let copied =
            unsafe { queue.enqueue(&Operation::Copy { src: &staged, dst: &dst }, after, Timing::Off) }
                .map_err(|error| lost_on(queue.device(), error))?;
        self.end.writes();
        staging.set_busy(Some(copied.clone()));
        self.keep(copied);
        Ok(())
    }

    /// Moves unified memory to the host before the first chunk, or to its device after the last one.
    pub(super) fn prefetch(&self, queue: &QueueLease, buffer: &RawBuffer, to: DeviceId) -> Result<Fence> {
        let _attached = self.attach();
        // SAFETY: moving pages keeps their bytes; the buffer is claimed until the transfer's end, which waits for the fence.
        let moved = unsafe { queue.enqueue(&Operation::Prefetch { buffer, to }, &[], Timing::Off) }?;
        self.keep(moved.clone());
        Ok(moved)
    }
}

fn host_side(buffer: &RawBuffer, offset: usize) -> Result<*mut u8> {
    match buffer.host_address() {
        // SAFETY: the offset is the beginning of a chunk, which lies within the buffer.
        Some(address) => Ok(unsafe { address.add(offset) }.as_ptr()),
        None => Err(Error::new(ErrorKind::Unsupported, "the host's side has no address")),
    }
}

/// Copies between the host's side of a transfer and a staging buffer, or between the two sides.
fn host_copy(src: *mut u8, dst: *mut u8, bytes: usize) {
    host_access::note(src.addr(), bytes, HostAccess::Read);
    host_access::note(dst.addr(), bytes, HostAccess::Write);
    // SAFETY: each side is a staging buffer that the caller holds, or a chunk that was claimed for the transfer and taken by
    // the caller alone; both are valid for the chunk's length, and the two are different memory.
    unsafe { stream_copy(src, dst, bytes) };
}
