//! Halves of batches by one kernel that leaves most of the device to others: between scratch memory and pieces, all of the device.

use std::ops::Range;

use transload_core::{BatchHalf, BlockList, Error, ErrorKind, HalfPairs, RawBuffer, Result, events::report};
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
    pairs: HalfPairs<'a>,
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
        pairs: HalfPairs<'a>,
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
        match &pairs {
            HalfPairs::Pairs(pairs) => {
                by_allocations(pairs).try_for_each(|pair| own(side(half, pair)).map(drop))?;
            }
            HalfPairs::Blocks(blocks, _) => {
                blocks.pools().iter().try_for_each(|pools| own(side(half, pools)).map(drop))?;
            }
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
        let cuts: usize = match &self.pairs {
            HalfPairs::Pairs(pairs) => pairs.iter().map(|pair| pair.0.len() / HALF_PIECE).sum(),
            HalfPairs::Blocks(blocks, range) => range.len().saturating_mul(blocks.block_bytes() / HALF_PIECE),
        };
        self.pairs.len().saturating_add(cuts)
    }

    /// Returns the entries of a piece between these addresses.
    fn entries_of(&self, there: u64, scratch: u64, bytes: usize) -> impl Iterator<Item = ListEntry> + use<> {
        let half = self.half;
        (0..bytes).step_by(HALF_PIECE).map(move |at| {
            let (there, scratch) = (there + at as u64, scratch + at as u64);
            let (from, to) = match half {
                BatchHalf::Gather => (there, scratch),
                BatchHalf::Scatter { .. } => (scratch, there),
            };
            [to, from, HALF_PIECE.min(bytes - at) as u64]
        })
    }

    fn entries_of_pairs(&self, pairs: &[(RawBuffer, RawBuffer)]) -> impl Iterator<Item = ListEntry> {
        let gap = match self.half {
            BatchHalf::Scatter { gap } if !transload_core::mutant!("streams/scatter-gaps") => gap,
            _ => 0,
        };
        let (mut scratch, mut last): (_, Option<&RawBuffer>) = (self.scratch, None);
        pairs.iter().filter(|(src, _)| !src.is_empty()).flat_map(move |pair| {
            let piece = side(self.half, pair);
            let before = last.replace(&pair.0).and_then(|last| last.gap_to(&pair.0, gap));
            let begin = scratch + before.unwrap_or(0) as u64;
            scratch = begin + piece.len() as u64;
            self.entries_of(address(piece), begin, piece.len())
        })
    }

    fn entries_of_blocks(&self, blocks: &BlockList, range: Range<usize>) -> impl Iterator<Item = ListEntry> {
        let (bytes, mut scratch) = (blocks.block_bytes(), self.scratch);
        let is_gather = self.half == BatchHalf::Gather;
        let addresses = blocks.parts(range).flat_map(move |(pools, from, to)| {
            let pool = address(side(self.half, pools));
            let indices = if is_gather { from } else { to };
            indices.iter().map(move |index| pool + (index * bytes) as u64)
        });
        addresses.flat_map(move |there| {
            let begin = scratch;
            scratch += bytes as u64;
            self.entries_of(there, begin, bytes)
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
        match &self.pairs {
            // SAFETY: the caller's promise.
            HalfPairs::Pairs(pairs) => unsafe { self.launch(self.entries_of_pairs(pairs), in_flight) },
            HalfPairs::Blocks(blocks, range) => {
                let entries = self.entries_of_blocks(blocks, range.clone());
                // SAFETY: the caller's promise.
                unsafe { self.launch(entries, in_flight) }
            }
        }
    }

    /// # Safety
    /// * As for [`make`](Self::make), whose entries these are.
    unsafe fn launch(
        &self,
        entries: impl Iterator<Item = ListEntry>,
        in_flight: &mut bool,
    ) -> std::result::Result<(), DriverError> {
        let Self { kernels, stream, .. } = *self;
        let (mut entries, mut left) = (entries.peekable(), self.most());
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

/// Returns the address of a buffer that has one: it was checked.
fn address(buffer: &RawBuffer) -> u64 {
    buffer.device_address().unwrap_or_default()
}

/// Returns the one of two buffers that the half uses.
fn side(half: BatchHalf, (src, dst): &(RawBuffer, RawBuffer)) -> &RawBuffer {
    match half {
        BatchHalf::Gather => src,
        BatchHalf::Scatter { .. } => dst,
    }
}
