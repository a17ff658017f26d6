//! A Vulkan device, as the backend uses it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use transload_core::{
    DeviceInfo, Fence, MemoryInfo, MemoryKind, PathCost, Place, Queue, RawBuffer, ResourceCounts, Result,
    SinkSlot, StagingHints, StreamPriority, mutant,
};

#[cfg(feature = "cuda")]
use super::SharedStorage;
use super::{DeviceState, Waits, costs, queue::WgpuQueue, storage::handled_of};
use crate::api::{ApiDevice, Submitted, read};

impl ApiDevice for DeviceState {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<RawBuffer> {
        Self::allocate(self, kind, bytes)
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.queue.vulkan.memory_info()
    }

    fn can_copy(&self, src: Place, dst: Place) -> bool {
        Self::can_copy(self, src, dst)
    }

    fn is_mapped_between(&self, src: Place, dst: Place) -> bool {
        self.queue.vulkan.maps_device && self.can_copy_alone(src, dst)
    }

    fn queue(self: Arc<Self>, priority: StreamPriority) -> Result<Arc<dyn Queue>> {
        self.queue.check_usable()?;
        Ok(Arc::new(WgpuQueue::new(&self, &self.wgpu, priority)))
    }

    fn urgent_queue(self: Arc<Self>) -> Result<Arc<dyn Queue>> {
        self.queue.check_usable()?;
        Ok(Arc::new(WgpuQueue::new(&self, self.urgent(), StreamPriority::High)))
    }

    fn reserved_queue(self: Arc<Self>, priority: StreamPriority) -> Result<Arc<dyn Queue>> {
        self.queue.check_usable()?;
        Ok(Arc::new(WgpuQueue::new(&self, self.next_copier(), priority)))
    }

    fn staging_hints(&self) -> StagingHints {
        costs::staging_hints(self)
    }

    fn leases(&self) -> &AtomicU64 {
        &self.leases
    }

    fn default_costs(&self) -> Vec<PathCost> {
        costs::of(self)
    }

    fn add_to(&self, counts: &mut ResourceCounts) {
        Self::add_to(self, counts);
    }

    fn device_bytes(&self) -> Option<u64> {
        Some(self.counters.device_bytes.load(Ordering::Relaxed))
    }

    fn sink(&self) -> Result<&SinkSlot> {
        if self.queue.has_timestamps() { Ok(&self.sink) } else { Err(self.queue.no_timestamps()) }
    }

    fn drain(&self) -> Result<()> {
        Self::drain(self)
    }

    fn wgpu_device(&self) -> &wgpu::Device {
        self.queue.vulkan.wgpu_device()
    }

    fn wgpu_buffer(&self, buffer: &RawBuffer) -> Option<Result<wgpu::Buffer>> {
        let handled = handled_of(buffer).filter(|handled| handled.memory().is_of(&self.queue.vulkan))?;
        Some(handled.wgpu_buffer())
    }

    #[cfg(feature = "cuda")]
    fn alias(&self, buffer: &RawBuffer) -> Option<Result<RawBuffer>> {
        let shared = self.shared.find(buffer)?;
        let storage = Box::new(SharedStorage::new(&shared.memory, buffer.allocation_len()));
        Some(RawBuffer::new_alias(storage, &self.reclaimer, buffer))
    }

    /// wgpu does not see what is written beneath it, and would zero it later: has wgpu read the buffer's bytes once.
    fn adopt(&self, buffer: &wgpu::Buffer) -> Result<RawBuffer> {
        let storage = Self::adopt(self, buffer)?;
        self.refuse_callback()?;
        if !mutant!("wgpu/adopted-is-read") {
            let vulkan = &self.queue.vulkan;
            let commands = vulkan.captured(|| read(vulkan.wgpu_device(), buffer, buffer.size()))?;
            self.queue.submit_wgpu(vec![commands], (Waits::new(), None), drop)?;
        }
        Ok(storage)
    }

    fn refuse_callback(&self) -> Result<()> {
        self.queue.refuse_callback()
    }

    fn submit(&self, commands: Submitted, after: &[Fence], commit: Box<dyn FnOnce(u64) + '_>) -> Result<()> {
        match commands {
            Some(commands) => self.queue.submit_wgpu(commands, (self.copied(after), None), commit)?,
            None if mutant!("wgpu/fence-of-queue") => commit(self.queue.enqueued()),
            // What a framework has had wgpu's queue write is a part of wgpu's next submission.
            None if self.queue.vulkan.is_shared && !mutant!("wgpu/fence-after-writes") => {
                self.queue.submit_wgpu(Vec::new(), (self.copied(after), None), commit)?;
            }
            // SAFETY: there are no commands.
            None => commit(unsafe { self.queue.submit(&[], &self.awaited_of(&self.wgpu, after)) }?),
        }
        Ok(())
    }
}

#[cfg(test)]
impl crate::WgpuBackend {
    pub(crate) fn states(&self) -> Vec<Arc<DeviceState>> {
        self.devices.iter().filter_map(as_vulkan).collect()
    }
}

/// Returns a device of this kind as such.
#[cfg(any(test, feature = "cuda"))]
pub(crate) fn as_vulkan(device: &Arc<dyn ApiDevice>) -> Option<Arc<DeviceState>> {
    let device: Arc<dyn std::any::Any + Send + Sync> = Arc::clone(device) as _;
    device.downcast().ok()
}
