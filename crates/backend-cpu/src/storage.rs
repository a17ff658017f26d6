//! The memory behind this backend's buffers, counted while it is alive.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{DeviceId, MemoryKind, Place, Storage};

/// What is alive of one backend.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allocations: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// Pageable memory with an owner `O`, which gives it back when it is dropped.
pub(crate) struct HostStorage<O> {
    address: NonNull<u8>,
    len: usize,
    writable: bool,
    counters: Arc<Counters>,
    _owner: O,
}

// SAFETY: the owner may be sent, and the address is only a copy of what it owns.
unsafe impl<O: Send> Send for HostStorage<O> {}
// SAFETY: nothing but the address and the length is reachable through a shared reference.
unsafe impl<O: Sync> Sync for HostStorage<O> {}

impl<O> HostStorage<O> {
    /// Memory of `owner`.
    ///
    /// # Safety
    /// * `len` bytes at `address` must be initialised, readable, and where `writable` also writable, until `owner` is
    ///   dropped; and the address must not change while the owner is moved.
    pub(crate) unsafe fn new(
        owner: O,
        address: NonNull<u8>,
        len: usize,
        writable: bool,
        counters: &Arc<Counters>,
    ) -> Self {
        counters.allocations.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(len as u64, Ordering::Relaxed);
        Self { address, len, writable, counters: Arc::clone(counters), _owner: owner }
    }
}

impl<O> Drop for HostStorage<O> {
    fn drop(&mut self) {
        self.counters.bytes.fetch_sub(self.len as u64, Ordering::Relaxed);
        self.counters.allocations.fetch_sub(1, Ordering::Release);
    }
}

// SAFETY: `new` was promised all of this; nothing changes afterwards.
unsafe impl<O: Send + Sync + 'static> Storage for HostStorage<O> {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, MemoryKind::Pageable)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        Some(self.address)
    }

    fn device_address(&self) -> Option<u64> {
        None
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
