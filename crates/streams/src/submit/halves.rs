//! Halves of batches by one kernel that leaves most of the device to others: between scratch memory and pieces, all of the device.

use transload_core::{BatchHalf, Error, ErrorKind, RawBuffer, Result, events::report};
use transload_cuda_sys::DriverError;
use transload_memory::ListEntry;

use super::{
    addresses::in_place,
    batches::by_allocations,
    kernels::{Kernels, Overlap, THREADS},
};
use crate::{
    CudaStream,
    built_in::{HALF_BLOCKS, HALF_PIECE},
    completion::timeline::StreamTimeline,
};

/// A checked half of a batch.
pub(crate) struct Half<'a> {
    kernels: &'a Kernels,
    stream: &'a StreamTimeline,
    half: BatchHalf,
    pairs: &'a [(RawBuffer, RawBuffer)],
    /// Address of the scratch memory.
    scratch: u64,
}

impl<'a> Half<'a> {
    /// Allocates the memory that its list lacks, if possible.
    ///
    /// # Errors
    /// `Unsupported` for memory of the host, and memory that the device cannot access; the driver's.
    pub(super) fn new(
        half: BatchHalf,
        pairs: &'a [(RawBuffer, RawBuffer)],
        scratch: &RawBuffer,
        stream: &'a CudaStream,
    ) -> Result<Self> {
        let own = |buffer: &RawBuffer| {
            if buffer.place().device.is_cpu() {
                let text = format!("half a batch copies memory of the device, not {} memory", buffer.place());
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            in_place(buffer, stream)
        };
        let scratch = own(scratch)?;
        for pair in by_allocations(pairs) {
            own(side(half, pair))?;
        }
        let made = Self { kernels: stream.own.kernels()?, stream: &stream.own, half, pairs, scratch };
        let timeline = made.stream;
        if let Err(error) = timeline.lists.prepare(timeline.context(), timeline.id, made.most()) {
            report::call_failed("half a batch becomes one launch for each piece", timeline.device, &error);
        }
        Ok(made)
    }

    /// Returns how many entries its list has at most.
    fn most(&self) -> usize {
        let cuts: usize = self.pairs.iter().map(|pair| pair.0.len() / HALF_PIECE as usize).sum();
        self.pairs.len().saturating_add(cuts)
    }

    fn entries(&self) -> impl Iterator<Item = ListEntry> {
        let gap = match self.half {
            BatchHalf::Scatter { gap } if !transload_core::mutant!("streams/scatter-gaps") => gap,
            _ => 0,
        };
        let (mut scratch, mut last): (_, Option<&RawBuffer>) = (self.scratch, None);
        self.pairs.iter().filter(|(src, _)| !src.is_empty()).flat_map(move |pair| {
            let piece = side(self.half, pair);
            // It has one: it was checked.
            let (there, bytes) = (piece.device_address().unwrap_or_default(), piece.len() as u64);
            let before = last.replace(&pair.0).and_then(|last| last.gap_to(&pair.0, gap));
            let begin = scratch + before.unwrap_or(0) as u64;
            scratch = begin + bytes;
            (0..bytes).step_by(HALF_PIECE as usize).map(move |at| {
                let (from, to) = match self.half {
                    BatchHalf::Gather => (there + at, begin + at),
                    BatchHalf::Scatter { .. } => (begin + at, there + at),
                };
                [to, from, HALF_PIECE.min(bytes - at)]
            })
        })
    }

    /// Enqueues it by one launch if its list fits a page.
    ///
    /// # Errors
    /// The driver's. Some pieces may be in flight then, as `in_flight` says.
    ///
    /// # Safety
    /// * The kernels' context is current.
    /// * The addresses are valid on the stream's device. The buffers stay alive and have no conflicting use until the copies are
    ///   complete; also after an error, if `in_flight` is true.
    pub(super) unsafe fn make(&self, in_flight: &mut bool) -> std::result::Result<(), DriverError> {
        let Self { kernels, stream, .. } = *self;
        let (mut entries, mut left) = (self.entries().peekable(), self.most());
        while entries.peek().is_some() {
            let Some(mut page) = stream.lists.take(stream.id, left) else { break };
            let (list, count);
            (list, count, entries) = page.write(entries, usize::MAX);
            left = left.saturating_sub(count);
            let warps = u32::try_from(count).unwrap_or(u32::MAX).div_ceil(THREADS / 32);
            let (blocks, alone) = (warps.clamp(1, HALF_BLOCKS), Overlap::default());
            // SAFETY: the caller's promise; the page has `count` pieces there, which stay until the event is complete.
            let launched = unsafe { kernels.launch_list_by(blocks, (list, count), stream.raw(), alone) };
            if let Err(error) = launched {
                stream.lists.put(page);
                return Err(error);
            }
            *in_flight = true;
            // A page whose end is unknown is dropped: it is freed when the device no longer uses it.
            page.record(stream.stream())?;
            stream.lists.put(page);
        }
        for [to, from, bytes] in entries {
            // SAFETY: the caller's promise.
            unsafe { kernels.copy(from, to, bytes as usize, stream.raw()) }?;
            *in_flight = true;
        }
        Ok(())
    }
}

/// Returns the piece of a pair that the half uses.
fn side(half: BatchHalf, (src, dst): &(RawBuffer, RawBuffer)) -> &RawBuffer {
    match half {
        BatchHalf::Gather => src,
        BatchHalf::Scatter { .. } => dst,
    }
}
