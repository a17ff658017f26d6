//! Copies one chunk: by the host between two memories, or through a staging buffer by a queue.

use std::{
    mem,
    ops::Range,
    ptr,
    sync::{Arc, atomic::Ordering},
};

use smallvec::SmallVec;
use transload_core::{
    Error, ErrorKind, Fence, Operation, PairList, QueueLease, RawBuffer, Result, StreamPriority, Timing,
    catch_panic,
    host_access::{self, HostAccess},
};
use transload_executor::{stream_copy, stream_copy_from, yield_now};

use super::{
    StagedTransfer,
    fresh::{copy_to_cleared, fault_in},
    parts::{Parts, is_short},
    pieces::Piece,
    queues::Queues,
    ring::{CAPACITY, StagingBuffer},
    wait_mode::{WaitMode, block_on_thread, has_room, room},
};
use crate::{
    report_events::{self, ChunkEvent},
    stats::lost::name_lost_device,
};

/// Bytes from which a piece of a list has its pages faulted in beforehand.
pub(super) const LONG: usize = 64 << 10;

/// The direction of a staged transfer, with its queues.
#[derive(Debug)]
pub(crate) enum StagedKind {
    /// From host memory, through staging buffers, to a device.
    Upload(Queues),
    /// From a device, through staging buffers, to host memory.
    Download(Queues),
    /// From one device, through staging buffers, to another.
    DeviceToDevice(QueueLease, QueueLease),
    /// From host memory into unified memory, which is then moved to its device.
    ToUnified(QueueLease),
    /// Out of unified memory, which is first moved to the host, into host memory.
    FromUnified(QueueLease),
}

/// A taken chunk and its staging buffer.
///
/// If dropped unfinished, it leaves its copies to the transfer, which then never finishes all chunks, and the buffer to
/// the ring.
pub(super) struct ChunkCopy {
    pub(super) transfer: Arc<StagedTransfer>,
    pub(super) range: Range<usize>,
    /// `Some` until the chunk is finished.
    buffer: Option<StagingBuffer>,
    /// Whether it counts as one that the host has not copied yet.
    on_host: bool,
    /// Whether its event was emitted.
    is_told: bool,
    /// Result of enqueueing the first copy, if tried.
    started: Option<Result<()>>,
    /// Enqueued copies that are not known to be complete.
    pub(super) copies: SmallVec<[Fence; 2]>,
    /// How many of them copy the bytes from the device up to the end of each segment.
    pub(super) segment_ends: SmallVec<[usize; 8]>,
    /// `Some` while any thread may copy parts of the chunk.
    pub(super) parts: Option<Arc<Parts>>,
}

impl ChunkCopy {
    /// `range` is a chunk that the caller has taken.
    pub(super) fn new(transfer: Arc<StagedTransfer>, range: Range<usize>, buffer: StagingBuffer) -> Self {
        transfer.buffers_in_use.fetch_add(1, Ordering::Relaxed);
        let on_host = transfer.is_upload();
        transfer.on_host.fetch_add(usize::from(on_host), Ordering::Relaxed);
        Self {
            transfer,
            range,
            buffer: Some(buffer),
            on_host,
            is_told: false,
            started: None,
            copies: SmallVec::new(),
            segment_ends: SmallVec::new(),
            parts: None,
        }
    }

    /// Counts the chunk as copied by the host, if it is not yet.
    fn leave_host(&mut self) {
        let counted = mem::take(&mut self.on_host);
        self.transfer.on_host.fetch_sub(usize::from(counted), Ordering::Relaxed);
    }

    fn tell(&self, event: ChunkEvent<'_>) {
        if let Some(id) = self.transfer.id {
            report_events::chunk(id, self.range.start, self.range.len(), event);
        }
    }

    pub(super) fn priority(&self) -> StreamPriority {
        self.transfer.priority
    }

    pub(super) fn is_of(&self, transfer: &Arc<StagedTransfer>) -> bool {
        Arc::ptr_eq(&self.transfer, transfer)
    }

    /// Enqueues the first copy, if that was not done and its queue has room. An upload, which the host copies first, only if `with_host`. A
    /// panic fails this chunk only, since the caller may be another transfer's task.
    pub(super) fn start(&mut self, with_host: bool) {
        if !mem::replace(&mut self.is_told, true) {
            self.tell(ChunkEvent::Started);
        }
        if self.started.is_some() {
            return;
        }
        let transfer = Arc::clone(&self.transfer);
        let started = catch_panic(|| match &transfer.kind {
            StagedKind::Upload(queues) if with_host && queues.have_room() => {
                block_on_thread(self.upload_parts(queues, WaitMode::Thread)).map(Some)
            }
            // That of a list takes long: the thread that starts all chunks leaves it to their tasks.
            StagedKind::Download(_) | StagedKind::DeviceToDevice(..)
                if !with_host && !transfer.is_contiguous() =>
            {
                Ok(None)
            }
            StagedKind::Download(queues) if queues.have_room() => self.download(queues).map(Some),
            StagedKind::DeviceToDevice(queue, _) if has_room(&**queue) => {
                self.enqueue_download(queue, 0..self.range.len()).map(Some)
            }
            _ => Ok(None),
        });
        self.started = started.and_then(|started| started).transpose();
        if self.started.is_some() {
            self.leave_host();
        }
    }

    /// Copies this chunk, then further ones from the ring. Yields to other tasks after each.
    pub(super) async fn run(self) {
        let ring = Arc::clone(&self.transfer.ring);
        let mut next = Some(self);
        while let Some(chunk) = next {
            next = chunk.finish(WaitMode::Task(ring.executor())).await;
            yield_now().await;
        }
    }

    /// Copies the chunk, and returns its buffer to the ring. The last chunk of a transfer completes it. Returns the
    /// ring's next chunk for the caller, if any.
    pub(super) async fn finish(mut self, waits: WaitMode<'_>) -> Option<Self> {
        let transfer = Arc::clone(&self.transfer);
        let moved = self.transfer_chunk(waits).await;
        self.end_parts().await;
        let arrived = self.wait_for_copies(waits).await;
        let buffer = self.buffer.take()?;
        self.leave_host();
        transfer.buffers_in_use.fetch_sub(1, Ordering::Relaxed);
        let outcome = moved.and(arrived);
        self.tell(match &outcome {
            Ok(()) => ChunkEvent::Completed,
            Err(error) => ChunkEvent::Failed(error),
        });
        transfer.note(outcome);
        // A caller that helps the transfer takes no chunk of another one.
        let mine = matches!(waits, WaitMode::Task(_)).then_some(transfer.priority);
        // Before the chunk counts as finished, so that all buffers are back at the transfer's end.
        let next = transfer.ring.return_buffer(buffer, mine);
        // The caller of the last chunk must end the transfer.
        if !transfer.chunks.finish() {
            return next;
        }
        if let Some(next) = next {
            // Not after the end, which may have to wait.
            transfer.ring.spawn(next);
        }
        transfer.end(waits).await;
        None
    }

    async fn transfer_chunk(&mut self, waits: WaitMode<'_>) -> Result<()> {
        let transfer = Arc::clone(&self.transfer);
        let is_started = self.started.take().transpose()?.is_some();
        match &transfer.kind {
            StagedKind::Upload(queues) => {
                if !is_started {
                    queues.room(waits).await;
                    let enqueued = self.upload_parts(queues, waits).await;
                    self.leave_host();
                    enqueued?;
                    transfer.ring.start_further(&transfer);
                }
                Ok(())
            }
            StagedKind::Download(queues) => {
                if !is_started {
                    queues.room(waits).await;
                    self.download(queues)?;
                }
                if transfer.has_parts(&self.range) {
                    return self.scatter_parts(waits).await;
                }
                // While the device copies.
                let cleared = self.fault_in()?;
                self.wait_for_copies(waits).await?;
                // One thread takes longer for so long a chunk than the device for all that are left.
                if transfer.chunks.size() == CAPACITY
                    && transfer.chunks.are_taken()
                    && !cleared.contains(&true)
                {
                    return self.scatter_arrived().await;
                }
                let (_, address) = self.staged()?;
                transfer.timeline.mark_written();
                for (piece, cleared) in transfer.pieces.within(&self.range).zip(cleared) {
                    // SAFETY: the piece lies within the staging buffer.
                    let staged = unsafe { address.add(piece.at) };
                    let dst = host_pointer(piece.dst, piece.range.start)?;
                    host_copy(staged, dst, piece.range.len(), transfer.user_stores(cleared));
                }
                Ok(())
            }
            StagedKind::DeviceToDevice(from, to) => {
                if !is_started {
                    room(&**from, waits).await;
                    self.enqueue_download(from, 0..self.range.len())?;
                }
                room(&**to, waits).await;
                if !self.copies.iter().all(|copied| to.can_wait_for(copied)) {
                    self.wait_for_copies(waits).await?;
                }
                self.enqueue_upload(to, 0..self.range.len())?;
                if transload_core::mutant!("transfer/keeps-first-half") {
                    self.copies.drain(..self.copies.len() - 1);
                }
                Ok(())
            }
            StagedKind::ToUnified(_) | StagedKind::FromUnified(_) => {
                let is_host = matches!(transfer.kind, StagedKind::FromUnified(_));
                for Piece { src, dst, range, .. } in transfer.pieces.within(&self.range) {
                    let (src, dst) = (host_pointer(src, range.start)?, host_pointer(dst, range.start)?);
                    let cleared = is_host && fault_in(dst, range.len());
                    transfer.timeline.mark_written();
                    host_copy(src, dst, range.len(), transfer.user_stores(cleared));
                }
                Ok(())
            }
        }
    }

    /// Waits for the enqueued copies. The first error of all counts.
    async fn wait_for_copies(&mut self, waits: WaitMode<'_>) -> Result<()> {
        let mut outcome = Ok(());
        // The last one first: the others are complete then.
        for copy in self.copies.iter().rev() {
            let arrived = waits.fence(copy).await;
            let arrived = arrived.map_err(|error| name_lost_device(copy.timeline().device(), error));
            outcome = arrived.and(outcome);
        }
        self.copies.clear();
        outcome
    }

    pub(super) fn staged(&self) -> Result<(RawBuffer, *mut u8)> {
        let missing = || Error::new(ErrorKind::Interrupted, "the staging buffer was returned");
        let (staged, address) = self.buffer.as_ref().ok_or_else(missing)?.slice(self.range.len())?;
        Ok((staged, address.as_ptr()))
    }

    /// Faults in the chunk's part of a destination of the host. Returns which of its pieces were absent.
    fn fault_in(&self) -> Result<SmallVec<[bool; 1]>> {
        let pieces = self.transfer.pieces.within(&self.range);
        let absent = |Piece { dst, range, .. }: Piece<'_>| {
            let dst = host_pointer(dst, range.start)?;
            // Asking about each short piece would take longer than faults.
            Ok((range.len() >= LONG || range.len() == self.range.len()) && fault_in(dst, range.len()))
        };
        pieces.map(absent).collect()
    }

    /// Enqueues the copy from the device into the staging buffer.
    fn download(&mut self, queues: &Queues) -> Result<()> {
        let transfer = Arc::clone(&self.transfer);
        if !transfer.has_parts(&self.range) {
            return self.enqueue_download(queues.next(), 0..self.range.len());
        }
        transfer.segments(self.range.clone()).try_for_each(|segment| {
            self.enqueue_download(queues.next(), segment)?;
            self.segment_ends.push(self.copies.len());
            Ok(())
        })
    }

    /// Enqueues the copy of a range of the chunk from the device into the staging buffer.
    fn enqueue_download(&mut self, queue: &QueueLease, range: Range<usize>) -> Result<()> {
        if self.transfer.through_device.is_some() {
            return self.enqueue_part(queue, range);
        }
        let (staged, _) = self.staged()?;
        let (mut pairs, first) = (PairList::default(), range.start);
        let bytes = self.range.start + range.start..self.range.start + range.end;
        for Piece { src, range, at, .. } in self.transfer.pieces.within(&bytes) {
            pairs.add((src, &staged), range.len(), [(range.start, first + at)])?;
        }
        self.enqueue(queue, &pairs)
    }

    /// Enqueues the copy of a range of the chunk from the staging buffer to the device, after the copies into that, if any.
    pub(super) fn enqueue_upload(&mut self, queue: &QueueLease, range: Range<usize>) -> Result<()> {
        if self.transfer.through_device.is_some() {
            return self.enqueue_part(queue, range);
        }
        let (staged, _) = self.staged()?;
        self.transfer.timeline.mark_written();
        let (mut pairs, first) = (PairList::default(), range.start);
        let bytes = self.range.start + range.start..self.range.start + range.end;
        for Piece { dst, range, at, .. } in self.transfer.pieces.within(&bytes) {
            pairs.add((&staged, dst), range.len(), [(first + at, range.start)])?;
        }
        self.enqueue(queue, &pairs)
    }

    /// Enqueues copies between the staging buffer and the device.
    fn enqueue(&mut self, queue: &QueueLease, pairs: &[(RawBuffer, RawBuffer)]) -> Result<()> {
        let _attached = self.transfer.attach();
        let operation = match (pairs, self.transfer.in_place) {
            ([(src, dst)], true) => Operation::CopyInPlace { src, dst },
            ([(src, dst)], false) => Operation::Copy { src, dst },
            (_, true) => Operation::CopyBatchInPlace { pairs },
            (_, false) => Operation::CopyBatch { pairs },
        };
        operation.prepare(&**queue);
        // Only a second hop comes after the first.
        let is_hop = matches!(self.transfer.kind, StagedKind::DeviceToDevice(..));
        let after = if is_hop { self.copies.len() } else { 0 };
        match self.enqueue_after(after, queue, &operation) {
            // Its queues take no batches.
            Err(error) if error.kind() == ErrorKind::Unsupported && pairs.len() > 1 => {
                let copy = |(src, dst)| self.enqueue_after(after, queue, &Operation::Copy { src, dst });
                pairs.iter().map(|(src, dst)| (src, dst)).try_for_each(copy)
            }
            outcome => outcome,
        }
    }

    /// Enqueues an operation after the first copies of the chunk, of this number.
    fn enqueue_after(&mut self, after: usize, queue: &QueueLease, operation: &Operation<'_>) -> Result<()> {
        let after = self.copies.get(..after).unwrap_or(&self.copies);
        // SAFETY: the staging buffer is this chunk's until `copies` are over; the other side is claimed until the transfer's
        // end, which comes after that; the lengths of each pair are equal, and the pairs of a transfer do not overlap.
        let copy = unsafe { queue.enqueue(operation, after, Timing::Off) };
        self.copies.push(copy.map_err(|error| name_lost_device(queue.device(), error))?);
        Ok(())
    }
}

impl Drop for ChunkCopy {
    fn drop(&mut self) {
        self.leave_host();
        if let Some(parts) = self.parts.take() {
            self.transfer.end_parts_now(&parts);
        }
        if let Some(buffer) = self.buffer.take() {
            self.transfer.abandon(&self.copies);
            self.transfer.ring.recover(buffer, &self.copies);
        }
    }
}

pub(super) fn host_pointer(buffer: &RawBuffer, offset: usize) -> Result<*mut u8> {
    match buffer.host_address() {
        // SAFETY: the offset is the beginning of a chunk, which lies within the buffer.
        Some(address) => Ok(unsafe { address.add(offset) }.as_ptr()),
        None => Err(Error::new(ErrorKind::Unsupported, "the host's side has no address")),
    }
}

/// How the host stores what it copies.
#[derive(Clone, Copy)]
pub(super) enum Stores {
    /// Past the caches.
    Streaming,
    /// Past the caches if it is at least so many bytes, else into them.
    StreamingFrom(usize),
    /// Into the caches: for a long upload, see [`StagingTuning::upload_cached_from`](super::StagingTuning); and for a short download, whose
    /// reader finds it there, which is 13 to 15 % faster on an H200.
    Cached,
    /// Into pages that [`fault_in`] has just cleared.
    ToCleared,
}

impl StagedTransfer {
    /// Returns how to store into a destination of the host. `cleared` is what [`fault_in`] returned.
    pub(super) fn user_stores(&self, cleared: bool) -> Stores {
        match cleared {
            true => Stores::ToCleared,
            false if is_short(self.pieces.bytes()) && !matches!(self.kind, StagedKind::ToUnified(_)) => {
                Stores::Cached
            }
            false => Stores::Streaming,
        }
    }
}

/// Copies on the host, between a buffer and a staging buffer or between the two buffers.
pub(super) fn host_copy(src: *mut u8, dst: *mut u8, bytes: usize, stores: Stores) {
    host_access::note(src.addr(), bytes, HostAccess::Read);
    host_access::note(dst.addr(), bytes, HostAccess::Write);
    // SAFETY: each side is a staging buffer that the caller holds, or a chunk that was claimed for the transfer and taken by
    // the caller alone; both are valid for the chunk's length, and the two are different memory.
    unsafe {
        match stores {
            Stores::Streaming => stream_copy(src, dst, bytes),
            Stores::StreamingFrom(least) => stream_copy_from(least, src, dst, bytes),
            Stores::Cached => ptr::copy_nonoverlapping(src, dst, bytes),
            Stores::ToCleared => copy_to_cleared(src, dst, bytes),
        }
    };
}
