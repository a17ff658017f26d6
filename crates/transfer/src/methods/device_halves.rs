//! The two halves of the chunks of a list that goes through scratch memory of a device: a copy engine's, and a kernel's.

use std::sync::Arc;

use smallvec::SmallVec;
use transload_core::{
    Access, BatchHalf, Claims, Fence, HalfPairs, Operation, QueueLease, RawBuffer, Result, StreamPriority,
    Timing, WorkloadType,
};

use super::{Route, TransferRequest};
use crate::attempt::NotSubmitted;

/// The queues of a list.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) engine: QueueLease,
    pub(super) kernel: QueueLease,
    /// For which the engine's was leased.
    pub(super) of: (StreamPriority, Option<WorkloadType>),
}

impl Queues {
    pub(super) fn lease(route: &Route, request: &TransferRequest<'_>) -> Result<Arc<Self>, NotSubmitted> {
        let engine = request.lease(&*route.backend, route.lane, WorkloadType::Memory, false)?;
        // Beside other kernels it waits for a place.
        let kernel = route.backend.lease_queue(route.lane, StreamPriority::High, WorkloadType::Compute)?;
        Ok(Arc::new(Self { engine, kernel, of: (request.options.priority, request.options.workload) }))
    }
}

/// The queues of one list, and the ends of what was enqueued on them.
pub(super) struct Halves<'a> {
    queues: &'a Queues,
    is_upload: bool,
    /// Most bytes between two pieces of a stretch.
    gap: usize,
    engine_end: Option<Fence>,
    kernel_end: Option<Fence>,
}

impl Drop for Halves<'_> {
    /// If the backend panics, the claims and the scratch memory end after this.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.wait();
        }
    }
}

impl<'a> Halves<'a> {
    pub(super) fn new(queues: &'a Queues, is_upload: bool, gap: usize) -> Self {
        Self { queues, is_upload, gap, engine_end: None, kernel_end: None }
    }

    /// Enqueues a chunk, after these fences.
    pub(super) fn enqueue(
        &mut self,
        pairs: HalfPairs<'_>,
        scratch: &RawBuffer,
        after: &[Fence],
    ) -> Result<()> {
        // Of no other thread: this one took it.
        let claims = Claims::acquire(&mut [(scratch, Access::Write)])?;
        let stretches = self.stretches(&pairs, scratch)?;
        let batch = Operation::CopyBatch { pairs: &stretches };
        let before: SmallVec<[Fence; 4]> = claims.after().iter().chain(after).cloned().collect();
        // SAFETY: the pairs were checked and are claimed until the end of the list, which comes after that of the chunk; the scratch memory
        // is claimed until the end of the chunk, and is as long as the stretches, which are made of the pairs and the gaps between them.
        // Nobody claimed the gaps, which others may write while the engine reads them: their copies in scratch memory are never used.
        unsafe {
            if self.is_upload {
                self.engine_end = Some(self.queues.engine.enqueue(&batch, &before, Timing::Off)?);
                let filled = self.engine_end.as_slice();
                let filled =
                    if transload_core::mutant!("transfer/scatter-after-copy") { &[] } else { filled };
                let half = BatchHalf::Scatter { gap: self.gap };
                self.kernel_end = Some(self.queues.kernel.enqueue_half(half, pairs, scratch, filled)?);
            } else {
                self.kernel_end =
                    Some(self.queues.kernel.enqueue_half(BatchHalf::Gather, pairs, scratch, &before)?);
                let filled = self.kernel_end.as_slice();
                self.engine_end = Some(self.queues.engine.enqueue(&batch, filled, Timing::Off)?);
            }
            if let Some(end) = self.end()
                && !transload_core::mutant!("transfer/scratch-in-use")
            {
                claims.commit(&end);
            }
        }
        Ok(())
    }

    /// Returns the ranges of the host's memory that the pairs fill, but for gaps of an upload, each with its part of the scratch memory.
    fn stretches(
        &self,
        pairs: &HalfPairs<'_>,
        scratch: &RawBuffer,
    ) -> Result<SmallVec<[(RawBuffer, RawBuffer); 1]>> {
        match pairs {
            HalfPairs::Pairs(pairs) => {
                let pieces = pairs.iter().filter(|(src, _)| !src.is_empty());
                self.joined(pieces.map(|(src, dst)| if self.is_upload { src } else { dst }), scratch)
            }
            HalfPairs::Blocks(blocks, range) => {
                let bytes = blocks.block_bytes();
                let runs = blocks.parts(range.clone()).flat_map(|((src, dst), from, to)| {
                    let (pool, indices) = if self.is_upload { (src, from) } else { (dst, to) };
                    let runs = indices.chunk_by(|one, next| one.checked_add(1) == Some(*next));
                    runs.map(move |run| {
                        let begin = run.first().copied().unwrap_or_default() * bytes;
                        pool.slice(begin..begin + run.len() * bytes)
                    })
                });
                let runs = runs.collect::<Result<Vec<_>>>()?;
                self.joined(runs.iter(), scratch)
            }
        }
    }

    /// Joins pieces of the host's memory within the longest gap.
    fn joined<'p>(
        &self,
        pieces: impl Iterator<Item = &'p RawBuffer>,
        scratch: &RawBuffer,
    ) -> Result<SmallVec<[(RawBuffer, RawBuffer); 1]>> {
        let (mut stretches, mut begin) = (SmallVec::new(), 0);
        // A view of each piece would count references.
        let mut close = |first: &RawBuffer, last: &RawBuffer| -> Result<()> {
            let stretch = first.extended(last).unwrap_or_else(|| first.clone());
            let end = begin + stretch.len();
            let staged = scratch.slice(begin..end)?;
            begin = end;
            stretches.push(if self.is_upload { (stretch, staged) } else { (staged, stretch) });
            Ok(())
        };
        let mut open: Option<(&RawBuffer, &RawBuffer)> = None;
        for piece in pieces {
            let first = match open {
                Some((first, last)) if last.gap_to(piece, self.gap).is_some() => first,
                Some((first, last)) => {
                    close(first, last)?;
                    piece
                }
                None => piece,
            };
            open = Some((first, piece));
        }
        open.map_or(Ok(()), |(first, last)| close(first, last))?;
        Ok(stretches)
    }

    /// Returns the end of the last second half.
    pub(super) fn end(&self) -> Option<Fence> {
        if self.is_upload { self.kernel_end.clone() } else { self.engine_end.clone() }
    }

    /// Waits for all that was enqueued.
    #[cold]
    pub(super) fn wait(&self) {
        for end in [&self.engine_end, &self.kernel_end].into_iter().flatten() {
            // The list has an error already; either way its work is complete.
            let _over = end.wait();
        }
    }
}
