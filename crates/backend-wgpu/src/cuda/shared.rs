//! The memory that both have, and submissions that use it.

use std::{
    collections::BTreeMap,
    iter,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use smallvec::SmallVec;
use transload_core::{
    Access, BufferId, Claims, DelayedWakes, DeviceId, Error, ErrorKind, Fence, Queue as _, RawBuffer, Result,
    StreamPriority, merge_uses, mutant,
};
use transload_streams::ExternalTimeline;

use super::order::Order;
use crate::{
    api::ApiDevice,
    vulkan::{DeviceState, Handled, Memory, WgpuQueue, as_vulkan, memory_of},
};

/// Memory of Vulkan that CUDA has imported, until the import has ended.
pub(crate) struct Shared {
    pub(crate) memory: Arc<Handled>,
    /// `None` where the host waits.
    pub(super) order: Option<Arc<Mutex<Order>>>,
}

/// The shared memory of a device, by CUDA's buffers.
#[derive(Default)]
pub(crate) struct SharedTable(Mutex<BTreeMap<BufferId, Weak<Shared>>>);

impl SharedTable {
    pub(super) fn add(&self, buffer: &RawBuffer, shared: &Arc<Shared>) {
        let mut table = self.0.lock();
        table.retain(|_, shared| shared.strong_count() > 0);
        table.insert(buffer.id(), Arc::downgrade(shared));
    }

    /// Returns what CUDA's buffer or its alias shares with the device.
    pub(crate) fn find(&self, buffer: &RawBuffer) -> Option<Arc<Shared>> {
        self.0.lock().get(&buffer.id())?.upgrade()
    }
}

/// The shared memory that a submission uses.
pub(crate) struct SharedUses {
    device: Arc<DeviceState>,
    /// Each once.
    shared: SmallVec<[Arc<Shared>; 2]>,
}

impl SharedUses {
    /// Returns those among some uses, if there are any.
    pub(crate) fn among(uses: &[(&RawBuffer, Access)], device: &Arc<dyn ApiDevice>) -> Option<Self> {
        let may_be = |buffer: &RawBuffer| {
            matches!(buffer.place().device, DeviceId::Cuda(_))
                || memory_of(buffer).is_some_and(Memory::is_exported)
        };
        let mut found = uses.iter().filter(|(buffer, _)| may_be(buffer)).peekable();
        found.peek()?;
        let device = as_vulkan(device)?;
        let mut shared: SmallVec<[_; 2]> =
            found.filter_map(|(buffer, _)| device.shared.find(buffer)).collect();
        shared.sort_unstable_by_key(Arc::as_ptr);
        shared.dedup_by(|one, other| Arc::ptr_eq(one, other));
        (!shared.is_empty()).then_some(Self { device, shared })
    }

    /// Submits command buffers after the conflicting work of both APIs, and before what either does later. Where they wait on the device
    /// for each other, blocks for work of others only.
    ///
    /// # Errors
    /// Those of [`WgpuBackend::submit`](crate::WgpuBackend::submit).
    pub(crate) fn submit(
        &self,
        commands: Vec<wgpu::CommandBuffer>,
        uses: &[(&RawBuffer, Access)],
    ) -> Result<Fence> {
        let Self { device, shared } = self;
        let uses = merge_uses(uses);
        let mut uses: Vec<_> = uses.iter().map(|(buffer, access)| (buffer, *access)).collect();
        let mut claims = Claims::updating(&mut uses)?;
        let queue = WgpuQueue::new(device, &device.wgpu, StreamPriority::Normal);
        // Before others are held up. The fences of submissions such as this one are CUDA's, too.
        for fence in claims.after().iter().filter(|fence| !queue.can_wait_for(fence)) {
            let device = fence.timeline().device();
            if !matches!(device, DeviceId::Cuda(_)) && !fence.timeline().as_any().is::<ExternalTimeline>() {
                // A failure is inherited.
                let _over = fence.wait();
            }
        }
        // Before CUDA is told to signal: it may fail.
        let memories: Vec<_> = shared.iter().map(|shared| shared.memory.memory()).collect();
        // SAFETY: the memory is claimed, and stays alive until the commands are complete. Work on other parts, and other reads, do no harm: see the
        // facts that this folder relies on.
        let [take, give] = unsafe { device.queue.vulkan.hand_over(&memories) }?;
        // Woken after the order's lock is released, and the commands are submitted, which a task may wait for.
        let mut wakes = DelayedWakes::default();
        let mut order = shared.iter().find_map(|shared| shared.order.as_ref()).map(|order| order.lock());
        let signal = match &mut order {
            Some(order) => {
                let is_foreign = |fence: &&Fence| !queue.can_wait_for(fence) && !order.is_own(fence);
                let foreign: Vec<Fence> = claims.after().iter().filter(is_foreign).cloned().collect();
                order.signal_after(&foreign)?
            }
            None if mutant!("wgpu/waits-for-cuda") => None,
            None => {
                claims.wait_for_foreign_fences(&queue);
                None
            }
        };
        let copied = device.copied(claims.after());
        let awaited = signal.as_ref().map(|signal| signal.awaited);
        let awaited = awaited.filter(|_| !mutant!("wgpu/waits-for-cuda"));
        let commands = iter::once(take).chain(commands).chain(iter::once(give)).collect();
        let mut submitted = None;
        device.queue.submit_wgpu(commands, (copied, awaited), |point| {
            let fence = match &mut order {
                Some(order) => order.fence(point, signal),
                None => Fence::new(Arc::clone(queue.timeline()), point),
            };
            submitted = Some(claims.inherit(fence.clone()));
            // A stream waits for the semaphore of an order, and that wait is left out then.
            if order.is_some() || !mutant!("wgpu/cuda-waits") {
                // SAFETY: the queue's point is reached after the commands, and after everything before them on the queue, and the fences that
                // the commands wait for.
                unsafe { claims.commit_quietly(&fence, &mut wakes) };
            }
            // Before callbacks of wgpu's user.
            drop(order);
        })?;
        let interrupted = || Error::new(ErrorKind::Interrupted, "the submission has no point");
        submitted.ok_or_else(interrupted)
    }
}

#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/unit/uncopied.rs"]
mod tests;
