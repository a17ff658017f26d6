//! A unified buffer without its element type: its memory, its queue and its state.

use std::{
    ops::{Range, RangeBounds},
    sync::Arc,
};

use parking_lot::Mutex;
use transload_core::{
    Error, ErrorKind, MemoryKind, Operation, Pattern, QueueLease, RawBuffer, Result, Timing, borrow,
    borrow_mut, events::report, fill, range_within, submit,
};
use transload_cuda_sys::Context;

use super::{
    UnifiedMode,
    state::{Placement, State},
};
use crate::{
    CudaDevice, CudaMemoryManager,
    ranges::bytes_of,
    storage::{FreeThread, PendingUpload},
};

pub(crate) struct Inner {
    pub(crate) device: CudaDevice,
    /// Memory that devices use: managed or device memory.
    pub(crate) raw: RawBuffer,
    /// In the explicit mode the host's pinned copy, which is never exposed.
    pub(crate) host: Option<RawBuffer>,
    /// Performs uploads that the queue refused, when the buffer is dropped.
    free_thread: Arc<FreeThread>,
    context: Context,
    pub(crate) queue: QueueLease,
    pub(crate) state: Mutex<State>,
}

impl Inner {
    pub(crate) fn allocate(
        memory: &CudaMemoryManager,
        queue: QueueLease,
        bytes: usize,
        mode: UnifiedMode,
    ) -> Result<Self> {
        let device = memory.device();
        check_queue(device, &queue)?;
        let (raw, host) = match mode {
            UnifiedMode::Managed => {
                if UnifiedMode::of(device)? == UnifiedMode::Explicit {
                    let text = format!(
                        "{} lacks concurrent managed access; use the mode {}",
                        device.id(),
                        UnifiedMode::Explicit
                    );
                    return Err(Error::new(ErrorKind::Unsupported, text));
                }
                (memory.allocate(MemoryKind::Unified, bytes)?, None)
            }
            UnifiedMode::Explicit => {
                let raw = memory.allocate(MemoryKind::Device, bytes)?;
                (raw, Some(memory.allocate(MemoryKind::Pinned, bytes)?))
            }
        };
        // The driver leaves the content undefined. Filling on the device costs the host no time.
        submit(&*queue, &Operation::Fill { dst: &raw, pattern: Pattern::U8(0) }, Timing::Off)?;
        Ok(Self::over(memory, queue, raw, host))
    }

    /// Creates a buffer over existing managed memory.
    pub(crate) fn wrap(memory: &CudaMemoryManager, queue: QueueLease, raw: RawBuffer) -> Result<Self> {
        let device = memory.device();
        check_queue(device, &queue)?;
        let place = raw.place();
        if place.kind != MemoryKind::Unified || raw.host_address().is_none() || !raw.is_writable() {
            let text = format!(
                "{place} memory cannot become a unified buffer; valid is writable unified memory that host and device can use \
                 at the same time"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if place.device != device.id() {
            let text = format!("memory belongs to {}, expected {}", place.device, device.id());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let inner = Self::over(memory, queue, raw, None);
        inner.state.lock().place = Placement::inherited(device.id());
        Ok(inner)
    }

    fn over(memory: &CudaMemoryManager, queue: QueueLease, raw: RawBuffer, host: Option<RawBuffer>) -> Self {
        let (device, alloc) = (memory.device().clone(), memory.alloc_context());
        let (free_thread, context) = (Arc::clone(alloc.free_thread), alloc.context.clone());
        Self { device, raw, host, free_thread, context, queue, state: Mutex::default() }
    }

    pub(crate) fn mode(&self) -> UnifiedMode {
        if self.host.is_some() { UnifiedMode::Explicit } else { UnifiedMode::Managed }
    }

    pub(crate) fn run(&self, operation: &Operation<'_>) -> Result<()> {
        submit(&*self.queue, operation, Timing::Off)?.wait()
    }

    /// Sets every element.
    pub(crate) fn fill(&self, element: &[u8]) -> Result<()> {
        self.retry_failed_uploads()?;
        fill(&*self.queue, &self.raw, element)?.wait()
    }

    /// Copies to a part of the memory that devices use.
    pub(crate) fn copy_from_host(&self, source: &[u8], dst: &RawBuffer) -> Result<()> {
        self.retry_failed_uploads()?;
        // SAFETY: the value is dropped at the end of this function and never cloned.
        let source = unsafe { borrow(source) };
        self.run(&Operation::Copy { src: &source, dst })
    }

    /// Copies from a part of the memory that devices use.
    pub(crate) fn copy_to_host(&self, src: &RawBuffer, destination: &mut [u8]) -> Result<()> {
        self.retry_failed_uploads()?;
        // SAFETY: the value is dropped at the end of this function and never cloned.
        let destination = unsafe { borrow_mut(destination) };
        self.run(&Operation::Copy { src, dst: &destination })
    }

    /// Converts a range of elements of `size` bytes to bytes.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub(crate) fn bytes(&self, range: impl RangeBounds<usize>, size: usize) -> Result<Range<usize>> {
        // No overflow: the end is within the buffer.
        let Range { start, end } = range_within(&range, self.raw.len() / size.max(1), "elements")?;
        Ok(start * size..end * size)
    }
}

impl Drop for Inner {
    /// Retries failed uploads of host writes: clones of the device buffer may outlive this value. If the queue refuses
    /// again, for example because its stream is being captured, the free thread uploads on its own stream.
    fn drop(&mut self) {
        let Some(host) = &self.host else { return };
        if let Err(error) = self.retry_failed_uploads() {
            report::unified_copy_failed(self.device.id(), self.raw.len(), &error);
        }
        for hold in self.state.get_mut().copy.take_failed_uploads() {
            if let Ok(from) = host.slice(bytes_of(hold.buffer()))
                && !transload_core::mutant!("memory/dropped-writes-are-sent")
            {
                self.free_thread.upload(self.context.clone(), PendingUpload { from, hold });
            }
        }
    }
}

fn check_queue(device: &CudaDevice, queue: &QueueLease) -> Result<()> {
    if queue.device() == device.id() {
        return Ok(());
    }
    let text = format!(
        "queue belongs to {}, memory to {}; use a queue of the memory's device",
        queue.device(),
        device.id()
    );
    Err(Error::new(ErrorKind::InvalidArgument, text))
}
