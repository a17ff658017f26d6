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

use super::{Memory, Vulkan};

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

/// Memory of a device, or host memory for it, counted until it is freed.
pub(crate) struct WgpuStorage {
    memory: Memory,
    kind: MemoryKind,
    len: usize,
    /// The part of `len` that counts as the device's.
    device_bytes: u64,
    counters: Arc<Counters>,
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
        let mut storage = Self::new(Memory::allocate(vulkan, kind, len)?, kind, len, counters);
        if kind == MemoryKind::Device {
            storage.device_bytes = len as u64;
            counters.device_bytes.fetch_add(len as u64, Ordering::Relaxed);
        }
        Ok(storage)
    }

    pub(crate) fn new(memory: Memory, kind: MemoryKind, len: usize, counters: &Arc<Counters>) -> Self {
        counters.allocations.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(len as u64, Ordering::Relaxed);
        counters.adopted.fetch_add(u64::from(memory.is_adopted()), Ordering::Relaxed);
        Self { memory, kind, len, device_bytes: 0, counters: Arc::clone(counters) }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// Returns the Vulkan memory of a buffer, of any device.
pub(crate) fn memory_of(buffer: &RawBuffer) -> Option<&Memory> {
    let storage = buffer.storage()?.as_any();
    let own = storage.downcast_ref::<WgpuStorage>().map(WgpuStorage::memory);
    #[cfg(feature = "cuda")]
    let own = own.or_else(|| storage.downcast_ref::<SharedStorage>().map(|shared| &*shared.memory));
    own
}

/// Device memory that another API has imported, which keeps and counts it: the storage of an alias of that API's buffer.
#[cfg(feature = "cuda")]
pub(crate) struct SharedStorage {
    memory: Arc<Memory>,
    len: usize,
}

#[cfg(feature = "cuda")]
impl SharedStorage {
    pub(crate) fn new(memory: &Arc<Memory>, len: usize) -> Self {
        Self { memory: Arc::clone(memory), len }
    }
}

// SAFETY: it has no address.
#[cfg(feature = "cuda")]
unsafe impl Storage for SharedStorage {
    fn place(&self) -> Place {
        Place::new(self.memory.device(), MemoryKind::Device)
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
        let owner = if self.kind == MemoryKind::Device { self.memory.device() } else { DeviceId::Cpu };
        Place::new(owner, self.kind)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        self.memory.address().filter(|_| self.kind.is_host_visible())
    }

    fn mapped_address(&self) -> Option<NonNull<u8>> {
        self.memory.address().filter(|_| self.kind.is_host_visible() || self.memory.vulkan.maps_device)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for WgpuStorage {
    fn drop(&mut self) {
        self.counters.adopted.fetch_sub(u64::from(self.memory.is_adopted()), Ordering::Relaxed);
        self.counters.device_bytes.fetch_sub(self.device_bytes, Ordering::Relaxed);
        self.counters.bytes.fetch_sub(self.len as u64, Ordering::Relaxed);
        self.counters.allocations.fetch_sub(1, Ordering::Release);
    }
}
