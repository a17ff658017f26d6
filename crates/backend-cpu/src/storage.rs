//! Storage that counts live memory.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use transload_core::{DeviceId, HostBytes, MemoryKind, Place, RegistrationSlot, Storage, mutant};
use transload_executor::{DropQueue, ExternalMemory, ExternalStorage};

/// Live allocations of one backend.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allocations: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Allocations that were dropped, and are freed after their registrations.
    pub(crate) registered_pending_free: AtomicU64,
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

/// Writable pageable memory that nothing but the storage frees, so that it may be registered until then.
struct OwnedBytes<O: Send + Sync + 'static> {
    address: NonNull<u8>,
    len: usize,
    /// Taken on drop.
    owner: Option<(O, AllocationCount)>,
    registration: RegistrationSlot,
}

// SAFETY: the owner is Send, and the address refers to memory that it keeps alive and that any thread may use.
unsafe impl<O: Send + Sync> Send for OwnedBytes<O> {}
// SAFETY: a shared reference gives access only to the fields' values.
unsafe impl<O: Send + Sync> Sync for OwnedBytes<O> {}

/// Creates storage over writable pageable memory that only `owner` frees, counted until then.
///
/// # Safety
/// * Those of [`HostBytes::new`].
pub(crate) unsafe fn owned_storage<O: Send + Sync + 'static>(
    owner: O,
    address: NonNull<u8>,
    len: usize,
    counters: &Arc<Counters>,
) -> Box<dyn Storage> {
    let owner = Some((owner, AllocationCount::of(len, counters)));
    Box::new(OwnedBytes { address, len, owner, registration: RegistrationSlot::default() })
}

/// Returns the owner that [`owned_storage`] was given, if it is of this type, and no driver uses its memory by a registration.
pub(crate) fn owner_of<O: Send + Sync + 'static>(storage: &dyn Storage) -> Option<&O> {
    let owned = storage.as_any().downcast_ref::<OwnedBytes<O>>()?;
    // Not if it lends its type to others that are a part of it.
    if !std::ptr::addr_eq(storage, owned)
        || owned.registration.is_registered() && !mutant!("cpu/registered-vector-is-kept")
    {
        return None;
    }
    owned.owner.as_ref().map(|(owner, _)| owner)
}

// SAFETY: the caller of `owned_storage` promised what concerns the address, and nothing changes afterwards. The owner is dropped by the
// slot.
unsafe impl<O: Send + Sync> Storage for OwnedBytes<O> {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, MemoryKind::Pageable)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        Some(self.address)
    }

    fn registration_slot(&self) -> Option<&RegistrationSlot> {
        Some(&self.registration)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<O: Send + Sync> Drop for OwnedBytes<O> {
    fn drop(&mut self) {
        if let Some((owner, mut count)) = self.owner.take() {
            if self.registration.is_registered() {
                count.pend();
            }
            self.registration.free((owner, count));
        }
    }
}

/// Counts one allocation. Dropped after the memory.
struct AllocationCount {
    len: u64,
    counters: Arc<Counters>,
    is_pending: bool,
}

impl AllocationCount {
    fn of(len: usize, counters: &Arc<Counters>) -> Self {
        let len = len as u64;
        counters.allocations.fetch_add(1, Ordering::Relaxed);
        counters.bytes.fetch_add(len, Ordering::Relaxed);
        Self { len, counters: Arc::clone(counters), is_pending: false }
    }

    /// Counts it as pending free.
    fn pend(&mut self) {
        self.is_pending = true;
        self.counters.registered_pending_free.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for AllocationCount {
    fn drop(&mut self) {
        if self.is_pending {
            self.counters.registered_pending_free.fetch_sub(1, Ordering::Relaxed);
        }
        self.counters.bytes.fetch_sub(self.len, Ordering::Relaxed);
        self.counters.allocations.fetch_sub(1, Ordering::Release);
    }
}
