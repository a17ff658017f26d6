//! Registrations that last until the memory is freed.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use transload_core::{DeviceId, ErrorKind, MemoryKind, Place, RawBuffer, RegistrationSlot, Storage};
use transload_cuda_sim::SimDevice;
use transload_memory::{CudaDevice, CudaMemoryManager, RegistrationCache, RegistrationStatistics};

use crate::{builder, heap::heap};

const BYTES: usize = 5000;

/// Says how many ranges were registered when it was dropped.
struct Owner {
    bytes: Vec<u8>,
    sim: SimDevice,
    registered: Arc<AtomicUsize>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.registered.store(self.sim.live_objects().registered, Ordering::Relaxed);
    }
}

struct Owned {
    address: NonNull<u8>,
    owner: Option<Owner>,
    slot: RegistrationSlot,
}

// SAFETY: the bytes are owned.
unsafe impl Send for Owned {}
// SAFETY: only the address is reachable.
unsafe impl Sync for Owned {}

// SAFETY: the owner keeps its bytes, which do not move, until the slot drops it.
unsafe impl Storage for Owned {
    fn place(&self) -> Place {
        Place::new(DeviceId::Cpu, MemoryKind::Pageable)
    }

    fn len(&self) -> usize {
        BYTES
    }

    fn host_address(&self) -> Option<NonNull<u8>> {
        Some(self.address)
    }

    fn registration_slot(&self) -> Option<&RegistrationSlot> {
        Some(&self.slot)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            self.slot.free(owner);
        }
    }
}

fn owned(sim: SimDevice) -> (RawBuffer, Arc<AtomicUsize>) {
    let registered = Arc::new(AtomicUsize::new(usize::MAX));
    let mut owner = Owner { bytes: vec![0; BYTES], sim, registered: Arc::clone(&registered) };
    let address = NonNull::new(owner.bytes.as_mut_ptr()).unwrap();
    let storage = Owned { address, owner: Some(owner), slot: RegistrationSlot::default() };
    (RawBuffer::new(Box::new(storage), &Arc::default()), registered)
}

fn manager(sim: SimDevice) -> Arc<CudaMemoryManager> {
    Arc::new(CudaMemoryManager::new(&CudaDevice::new(sim.ordinal()).unwrap()).unwrap())
}

#[test]
fn registration_ends_before_its_memory_is_freed() {
    let sim = builder().build();
    let memory = manager(sim);
    let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
    let (buffer, registered_at_drop) = owned(sim);
    cache.register_until_freed(&buffer.slice(7..9).unwrap()).unwrap();
    assert!(buffer.is_registered() && sim.live_objects().registered == 1);
    assert_eq!(memory.resource_counts().bytes, BYTES as u64, "all of it, not only the slice");
    assert_eq!(cache.register_until_freed(&buffer).unwrap_err().kind(), ErrorKind::Busy);
    // The caller's registration is this one.
    let pinned = cache.register(&buffer).unwrap();
    assert_eq!((pinned.len(), sim.live_objects().registered), (BYTES, 1));
    drop(pinned);
    cache.trim().unwrap();
    assert!(buffer.is_registered() && sim.live_objects().registered == 1);
    drop(buffer);
    memory.drain().unwrap();
    assert_eq!(registered_at_drop.load(Ordering::Relaxed), 0, "freed while registered");
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    drop((cache, memory));
    assert!(sim.live_objects().is_empty(), "{}", sim.live_objects());
}

#[test]
fn refused_registration_changes_nothing() {
    let sim = builder().build();
    let memory = manager(sim);
    let cache = RegistrationCache::new(&memory, BYTES as u64).unwrap();
    let (foreign, _freed) = heap(BYTES, true);
    assert_eq!(cache.register_until_freed(&foreign).unwrap_err().kind(), ErrorKind::Unsupported);
    let (first, _) = owned(sim);
    let pinned = cache.register(&first).unwrap();
    assert_eq!(cache.register_until_freed(&first).unwrap_err().kind(), ErrorKind::OutOfMemory, "the limit");
    let wide = RegistrationCache::new(&memory, u64::MAX).unwrap();
    // The driver says what this cache does not know.
    assert_eq!(wide.register_until_freed(&first).unwrap_err().kind(), ErrorKind::InvalidArgument);
    drop(pinned);
    assert!(!first.is_registered() && sim.live_objects().registered == 1);
    cache.trim().unwrap();
    sim.fail_call(Some("cuMemHostRegister_v2"), 1, crate::OUT_OF_MEMORY);
    assert_eq!(cache.register_until_freed(&first).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert!(!first.is_registered() && memory.resource_counts().is_empty());
    cache.register_until_freed(&first).unwrap();
    let (second, _) = owned(sim);
    assert_eq!(cache.register_until_freed(&second).unwrap_err().kind(), ErrorKind::OutOfMemory, "the limit");
    drop((first, second));
    memory.drain().unwrap();
    assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
}

#[test]
fn limit_holds_for_both_kinds_of_registrations_together() {
    let sim = builder().build();
    let memory = manager(sim);
    let cache = RegistrationCache::new(&memory, BYTES as u64).unwrap();
    let other = RegistrationCache::new(&memory, BYTES as u64).unwrap();
    let [(first, _), (second, _), (third, _)] = [(); 3].map(|()| owned(sim));
    cache.register_until_freed(&first).unwrap();
    let refused = cache.register(&second).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
    let RegistrationStatistics { registrations, bytes, .. } = cache.statistics();
    assert_eq!((registrations, bytes), (1, BYTES as u64));
    // Another cache has a limit of its own.
    other.register_until_freed(&third).unwrap();
    drop(first);
    memory.drain().unwrap();
    assert_eq!(cache.statistics().bytes, 0);
    drop(cache.register(&second).unwrap());
    assert_eq!(cache.statistics().bytes, BYTES as u64);
}

#[test]
fn request_that_fits_is_registered_though_it_does_not_with_its_neighbours() {
    let sim = builder().build();
    let memory = manager(sim);
    let cache = RegistrationCache::new(&memory, 100).unwrap();
    let [(first, _), (second, _)] = [(); 2].map(|()| owned(sim));
    let part = |of: &RawBuffer, from: usize, to: usize| of.slice(from..to).unwrap();
    let in_use = cache.register(&part(&first, 0, 60)).unwrap();
    drop(cache.register(&part(&second, 0, 40)).unwrap());
    assert_eq!(cache.register(&part(&second, 20, 50)).unwrap().len(), 30);
    assert_eq!(cache.statistics().bytes, 90);
    drop(in_use);
}

#[test]
fn registrations_of_the_caller_stay() {
    let sim = builder().build();
    let memory = manager(sim);
    let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
    let (buffer, _) = owned(sim);
    // Idle, and of a part only.
    drop(cache.register(&buffer.slice(..100).unwrap()).unwrap());
    assert_eq!(cache.register_until_freed(&buffer).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(cache.statistics().registrations, 1);
    drop(cache.register(&buffer.slice(..100).unwrap()).unwrap());
    assert_eq!((cache.statistics().hits, cache.statistics().registered), (1, 1));
    cache.trim().unwrap();
    cache.register_until_freed(&buffer).unwrap();
}
