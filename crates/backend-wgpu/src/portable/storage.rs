//! Storage of a device's buffers, and of its staging buffers, which counts live memory.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{DeviceId, MemoryKind, Place, Storage};

/// Live allocations of one device.
pub(super) struct Counters {
    pub(super) device: DeviceId,
    pub(super) allocations: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// A buffer of wgpu, counted until it is dropped. wgpu keeps the memory while work uses it.
pub(super) struct PortableStorage {
    pub(super) buffer: wgpu::Buffer,
    len: usize,
    counters: Arc<Counters>,
}

impl PortableStorage {
    pub(super) fn new(buffer: wgpu::Buffer, len: usize, counters: &Arc<Counters>) -> Self {
        counters.allocations.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(len as u64, Ordering::Relaxed);
        Self { buffer, len, counters: Arc::clone(counters) }
    }

    /// Returns whether it is memory of the device with these counters.
    pub(super) fn is_of(&self, counters: &Arc<Counters>) -> bool {
        Arc::ptr_eq(&self.counters, counters)
    }
}

// SAFETY: the host has no address of it, and nothing changes.
unsafe impl Storage for PortableStorage {
    fn place(&self) -> Place {
        Place::new(self.counters.device, MemoryKind::Device)
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
}

impl Drop for PortableStorage {
    fn drop(&mut self) {
        self.counters.bytes.fetch_sub(self.len as u64, Ordering::Relaxed);
        self.counters.allocations.fetch_sub(1, Ordering::Release);
    }
}
