//! Lists that are staged through device memory too: short pieces lie end to end in scratch memory of the device, between which and the
//! staging buffers a chunk is one copy, and between which and the pieces a kernel copies.

use std::slice;

use parking_lot::Mutex;
use transload_core::{BatchHalf, Fence, HalfPairs, QueueLease, RawBuffer, Result};

use super::{
    StagedTransfer,
    wait_mode::{WaitMode, room},
};
use crate::stats::lost::name_lost_device;

/// The device's side of such a list.
pub(crate) struct ThroughDevice {
    /// The kernel's.
    queue: QueueLease,
    /// As long as the list, and claimed until the transfer's end.
    pub(super) scratch: RawBuffer,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// The end of the kernel from which a download's chunks come.
    gathered: Option<Fence>,
    /// Bytes of an upload whose copies to the scratch memory were enqueued.
    enqueued: usize,
}

impl ThroughDevice {
    pub(crate) fn new(queue: QueueLease, scratch: RawBuffer) -> Self {
        Self { queue, scratch, progress: Mutex::default() }
    }
}

impl StagedTransfer {
    /// Enqueues the kernel that fills the scratch memory, if there is any, before the first chunk.
    pub(super) async fn gather(&self, waits: WaitMode<'_>) -> Result<()> {
        let Some(through) = &self.through_device else { return Ok(()) };
        room(&*through.queue, waits).await;
        let gathered = self.enqueue_half(through, BatchHalf::Gather, &[])?;
        through.progress.lock().gathered = Some(gathered);
        Ok(())
    }

    /// Enqueues the copy of `bytes` bytes of a chunk by `copy`, which is passed the fences that come before it. The last one of an upload is
    /// followed by the kernel that empties the scratch memory: returns its fence then.
    pub(super) fn enqueue_part(
        &self,
        through: &ThroughDevice,
        bytes: usize,
        copy: impl FnOnce(&[Fence]) -> Result<Fence>,
    ) -> Result<Option<Fence>> {
        let mut progress = through.progress.lock();
        // Under the lock, so that the last one counted is the queue's last.
        let copied = copy(progress.gathered.as_slice())?;
        progress.enqueued += bytes;
        let is_last = progress.enqueued == self.pieces.bytes();
        drop(progress);
        if !is_last || !self.is_upload() {
            return Ok(None);
        }
        self.timeline.mark_written();
        let copied = slice::from_ref(&copied);
        let after = if transload_core::mutant!("transfer/staged-scatter") { &[] } else { copied };
        self.enqueue_half(through, BatchHalf::Scatter { gap: 0 }, after).map(Some)
    }

    fn enqueue_half(&self, through: &ThroughDevice, half: BatchHalf, after: &[Fence]) -> Result<Fence> {
        let ThroughDevice { queue, scratch, .. } = through;
        let _attached = self.attach();
        // SAFETY: the pairs were checked; they and the scratch memory, which is as long, are claimed until the transfer's end, which
        // waits for the chunks whose copies come after a gather, or before a scatter, and for the scatter as the last one's.
        let end = unsafe { queue.enqueue_half(half, HalfPairs::Pairs(self.pieces.pairs()), scratch, after) };
        let end = end.map_err(|error| name_lost_device(queue.device(), error))?;
        self.pending.lock().push(end.clone());
        Ok(end)
    }
}
