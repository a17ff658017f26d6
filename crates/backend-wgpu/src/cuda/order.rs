//! The order of a device's submissions and CUDA's streams, where both wait on the device.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use ash::vk;
use transload_core::{Error, ErrorKind, Fence, Result, Timeline, TimelineId};
use transload_memory::CudaDevice;
use transload_streams::{CudaStream, ExternalSemaphore, ExternalTimeline};

use super::imported::ImportedSemaphore;
use crate::vulkan::{ForeignSignal, Semaphore, Submissions, Vulkan};

/// What the device waits by. The stream whose work a submission waits for signals a semaphore. Streams wait for the submission by the
/// queue's semaphore.
///
/// Each `CudaInterop` of a pair of devices has one of its own. A submission that uses memory of several goes by one of them, and takes the other's
/// fences for those of CUDA's work: its stream waits for them, as each stream can, and signals. So their order holds, and the fence of the submission
/// comes after all that the other's do, also after a loss, where an [`ExternalTimeline`] counts only what it was told. It takes one change between
/// the APIs more. No wait is for ever: a fence is published under the lock of the queue that submits its point next, so before the submission that
/// waits for it, and no lock of an order is taken under it.
pub(super) struct Order {
    queue: Arc<Submissions>,
    before: Vec<Before>,
    after: Arc<ExternalTimeline>,
    /// Signals where no stream of the others can: it waits for their fences. The GPU then takes several times as long, since it switches
    /// between the APIs only at the end of a time slice.
    stream: CudaStream,
    cuda: CudaDevice,
}

/// A semaphore that one stream signals at a time, so that its values grow.
struct Before {
    by: TimelineId,
    signalled: Arc<Signalled>,
    /// The point of the submission that waits for it; `u64::MAX` until that is known, and for good if there is none.
    point: u64,
}

/// What streams signal, and Vulkan waits for.
struct Signalled {
    semaphore: ExternalSemaphore,
    vulkan: Arc<Semaphore>,
    /// The last value that was signalled, or may be.
    value: AtomicU64,
}

/// A semaphore that is signalled after a fence.
pub(super) struct Signal {
    index: usize,
    after: Fence,
    /// What a submission waits for.
    pub(super) awaited: (vk::Semaphore, u64),
}

impl Order {
    pub(super) fn new(queue: &Arc<Submissions>, cuda: &CudaDevice) -> Result<Self> {
        let after = ImportedSemaphore::new(cuda, queue.semaphore(), Arc::clone(queue) as _)?;
        let timeline = Arc::clone(queue) as Arc<dyn Timeline>;
        // SAFETY: the semaphore's value is the last submission's point that the queue has reached, and a lost queue has reached all.
        let after = unsafe { ExternalTimeline::new(timeline, ExternalSemaphore::new(cuda, after)) };
        let (queue, stream) = (Arc::clone(queue), CudaStream::new(cuda)?);
        Ok(Self { queue, before: Vec::new(), after, stream, cuda: cuda.clone() })
    }

    /// Returns whether the fence is that of a submission, which Vulkan's queue is in order with.
    pub(super) fn is_own(&self, fence: &Fence) -> bool {
        fence.timeline().id() == self.after.id()
    }

    /// Has a semaphore signalled after the fences, unless all are complete.
    pub(super) fn signal_after(&mut self, fences: &[Fence]) -> Result<Option<Signal>> {
        let mut open: Vec<_> = fences.iter().filter(|fence| !fence.is_complete()).cloned().collect();
        open.sort_unstable_by_key(Fence::point);
        let Some(last) = open.last() else { return Ok(None) };
        if open.iter().all(|fence| fence.timeline().id() == last.timeline().id())
            && let Some(signal) = self.signal_by(last)?
        {
            return Ok(Some(signal));
        }
        self.stream.wait_fences(&open)?;
        let last = self.stream.fence()?;
        let failed = || Error::new(ErrorKind::Interrupted, "the stream signals no semaphore");
        self.signal_by(&last)?.ok_or_else(failed).map(Some)
    }

    /// Has the stream of a fence signal a semaphore, if it can.
    fn signal_by(&mut self, fence: &Fence) -> Result<Option<Signal>> {
        let by = fence.timeline().id();
        let is_same = |before: &Before| before.by == by;
        let free = || {
            let reached = self.queue.refresh();
            self.before.iter().position(|before| before.point <= reached)
        };
        let index = match self.before.iter().position(is_same).or_else(free) {
            Some(index) => index,
            None => {
                self.before.push(Before::new(&self.queue.vulkan, &self.cuda, by)?);
                self.before.len() - 1
            }
        };
        let Some(before) = self.before.get_mut(index) else { return Ok(None) };
        let Signalled { semaphore, vulkan, value } = &*before.signalled;
        let earlier = (before.by, before.point);
        // Also if the call fails: it may have enqueued the signal, and each value is signalled once.
        (before.by, before.point) = (by, u64::MAX);
        let next = value.fetch_add(1, Ordering::Relaxed) + 1;
        if !semaphore.signal_after(fence, next)? {
            value.store(next - 1, Ordering::Relaxed);
            (before.by, before.point) = earlier;
            return Ok(None);
        }
        Ok(Some(Signal { index, after: fence.clone(), awaited: vulkan.at(next) }))
    }

    /// Returns the fence of a submission that waits for a semaphore.
    pub(super) fn fence(&mut self, point: u64, signal: Option<Signal>) -> Fence {
        let after = signal.map(|Signal { index, after, .. }| {
            if let Some(before) = self.before.get_mut(index) {
                before.point = point;
            }
            after
        });
        self.after.fence(point, after)
    }
}

impl Before {
    fn new(vulkan: &Arc<Vulkan>, cuda: &CudaDevice, by: TimelineId) -> Result<Self> {
        let semaphore = Arc::new(Semaphore::new(vulkan)?);
        let imported = ImportedSemaphore::new(cuda, &semaphore, semaphore.clone())?;
        Ok(Self::of(vulkan, by, ExternalSemaphore::new(cuda, imported), semaphore))
    }

    /// Takes in a semaphore, of which both are handles.
    fn of(vulkan: &Vulkan, by: TimelineId, semaphore: ExternalSemaphore, other: Arc<Semaphore>) -> Self {
        let signalled = Arc::new(Signalled { semaphore, vulkan: other, value: AtomicU64::new(0) });
        vulkan.watch(Arc::downgrade(&signalled));
        Self { by, signalled, point: 0 }
    }
}

impl ForeignSignal for Signalled {
    fn last(&self) -> (&Semaphore, u64) {
        (&self.vulkan, self.value.load(Ordering::Relaxed))
    }

    fn is_lost(&self) -> bool {
        self.semaphore.is_lost()
    }
}

impl Drop for Order {
    /// The semaphores outlive the submissions that wait for them.
    fn drop(&mut self) {
        let last = self.before.iter().map(|before| before.point).max().unwrap_or(0);
        self.queue.block_until(last.min(self.queue.enqueued()));
    }
}

#[cfg(test)]
#[path = "../../tests/unit/signals.rs"]
mod tests;
