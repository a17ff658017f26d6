//! Storage that counts live memory.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{DeviceId, HostBytes, MemoryKind, Place, Storage};
use transload_executor::{DropQueue, ExternalMemory, ExternalStorage};

/// Live allocations of one backend.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allocations: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// Creates storage over an owner's pageable memory, counted until the owner is dropped: by `drops`, or without it by the thread that
/// ends the last use.
///
/// # Safety
/// * Those of [`HostBytes::new`].
pub(crate) unsafe fn counted_storage<O: Send + Sync + 'static>(
    owner: O,
    address: NonNull<u8>,
    len: usize,
    writable: bool,
    counters: &Arc<Counters>,
    drops: Option<&DropQueue>,
) -> Box<dyn Storage> {
    let owner = (owner, AllocationCount::of(len, counters));
    let Some(drops) = drops else {
        // SAFETY: the caller's promise.
        return Box::new(unsafe { HostBytes::new(owner, address, len, MemoryKind::Pageable, writable) });
    };
    let memory = ExternalMemory {
        place: Place::new(DeviceId::Cpu, MemoryKind::Pageable),
        bytes: len,
        host_address: Some(address),
        device_address: None,
        writable,
        backend_data: None,
    };
    // SAFETY: the caller's promise.
    Box::new(unsafe { ExternalStorage::new(memory, Box::new(owner), drops) })
}

/// Counts one allocation. Dropped after the memory.
struct AllocationCount {
    len: u64,
    counters: Arc<Counters>,
}

impl AllocationCount {
    fn of(len: usize, counters: &Arc<Counters>) -> Self {
        let len = len as u64;
        counters.allocations.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(len, Ordering::Relaxed);
        Self { len, counters: Arc::clone(counters) }
    }
}

impl Drop for AllocationCount {
    fn drop(&mut self) {
        self.counters.bytes.fetch_sub(self.len, Ordering::Relaxed);
        self.counters.allocations.fetch_sub(1, Ordering::Release);
    }
}
