//! Storage of this backend's buffers, which counts live memory.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{DeviceId, MemoryKind, Place, RawBuffer, Result, Storage};

use super::{Handled, Memory, Vulkan};

/// Live allocations of one device.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allocations: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// The part of `bytes` that is the device's memory and was allocated here.
    pub(crate) device_bytes: AtomicU64,
    /// Number of a framework's buffers.
    pub(crate) adopted: AtomicU64,
}

/// The counts of an allocation, until they are dropped.
pub(super) struct Counted {
    counters: Arc<Counters>,
    bytes: u64,
    device_bytes: u64,
    adopted: u64,
}

impl Counted {
    fn new(counters: &Arc<Counters>, bytes: u64, device_bytes: u64, adopted: u64) -> Self {
        counters.allocations.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        counters.device_bytes.fetch_add(device_bytes, Ordering::Relaxed);
        counters.adopted.fetch_add(adopted, Ordering::Relaxed);
        Self { counters: Arc::clone(counters), bytes, device_bytes, adopted }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counters.adopted.fetch_sub(self.adopted, Ordering::Relaxed);
        self.counters.device_bytes.fetch_sub(self.device_bytes, Ordering::Relaxed);
        self.counters.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.counters.allocations.fetch_sub(1, Ordering::Release);
    }
}

/// Memory of a device, or host memory for it, counted until it is freed.
pub(crate) struct WgpuStorage {
    memory: Handled,
    kind: MemoryKind,
    len: usize,
}

impl WgpuStorage {
    /// # Errors
    /// Those of [`Memory::allocate`].
    pub(crate) fn allocate(
        vulkan: &Arc<Vulkan>,
        kind: MemoryKind,
        len: usize,
        counters: &Arc<Counters>,
    ) -> Result<Self> {
        let memory = Memory::allocate(vulkan, kind, len)?;
        let device_bytes = if kind == MemoryKind::Device { len as u64 } else { 0 };
        Ok(Self::new(memory, kind, len, Counted::new(counters, len as u64, device_bytes, 0)))
    }

    /// Takes a framework's buffer.
    pub(crate) fn adopt(memory: Memory, counters: &Arc<Counters>) -> Self {
        let counted = Counted::new(counters, memory.size(), 0, 1);
        let len = usize::try_from(memory.size()).unwrap_or(usize::MAX);
        Self::new(memory, MemoryKind::Device, len, counted)
    }

    fn new(mut memory: Memory, kind: MemoryKind, len: usize, counted: Counted) -> Self {
        memory.counted = Some(counted);
        Self { memory: Handled::new(memory), kind, len }
    }

    pub(crate) fn memory(&self) -> &Memory {
        self.memory.memory()
    }
}

/// Returns the Vulkan memory of a buffer, of any device.
pub(crate) fn memory_of(buffer: &RawBuffer) -> Option<&Memory> {
    handled_of(buffer).map(Handled::memory)
}

/// Returns the same with wgpu's handle.
pub(super) fn handled_of(buffer: &RawBuffer) -> Option<&Handled> {
    let storage = buffer.storage()?.as_any();
    let own = storage.downcast_ref::<WgpuStorage>().map(|storage| &storage.memory);
    #[cfg(feature = "cuda")]
    let own = own.or_else(|| storage.downcast_ref::<SharedStorage>().map(|shared| &*shared.memory));
    own
}

/// Device memory that another API has imported, which keeps and counts it: the storage of an alias of that API's buffer.
#[cfg(feature = "cuda")]
pub(crate) struct SharedStorage {
    memory: Arc<Handled>,
    len: usize,
}

#[cfg(feature = "cuda")]
impl SharedStorage {
    pub(crate) fn new(memory: &Arc<Handled>, len: usize) -> Self {
        Self { memory: Arc::clone(memory), len }
    }
}

// SAFETY: it has no address.
#[cfg(feature = "cuda")]
unsafe impl Storage for SharedStorage {
    fn place(&self) -> Place {
        Place::new(self.memory.memory().device(), MemoryKind::Device)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    /// The original, which the alias keeps, has the same fences, and the memory until these are complete.
    fn adopt_fences(&mut self, _: &[transload_core::Fence]) -> bool {
        true
    }
}

// SAFETY: what is mapped stays so at one address, aligned to at least 64 bytes, until it is freed, which a drop does. Nothing
// changes afterwards.
unsafe impl Storage for WgpuStorage {
    fn place(&self) -> Place {
        let owner = if self.kind == MemoryKind::Device { self.memory().device() } else { DeviceId::Cpu };
        Place::new(owner, self.kind)
    }

    fn maker(&self) -> Option<DeviceId> {
        (self.kind != MemoryKind::Device).then(|| self.memory().device())
    }

    fn len(&self) -> usize {
        self.len
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.memory().address().filter(|_| self.kind.is_host_visible())
    }

    fn mapped_address(&self) -> Option<NonNull<u8>> {
        self.memory().address().filter(|_| self.kind.is_host_visible() || self.memory().vulkan.maps_device)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
