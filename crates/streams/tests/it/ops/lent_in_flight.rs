//! Work in flight on memory from an adaptor or a registration keeps the memory alive and orders later work.

use std::sync::{Arc, atomic::Ordering};

use transload_core::{ErrorKind, MemoryKind};
use transload_memory::{
    CudaMemoryManager, CudaResource, LimitingResource, MemoryResource, RegistrationCache,
};
use transload_streams::CudaStream;

use crate::{
    allocator::watched,
    support::{
        gate::Gate,
        heap::{heap, over},
        setup::{Setup, noise},
    },
};

const BYTES: usize = 300_001;

#[test]
fn segment_of_a_dropped_adaptor_outlives_its_work() {
    watched(|| {
        let setup = Setup::new();
        let memory = Arc::new(CudaMemoryManager::new(&setup.device).unwrap());
        let stream = CudaStream::new(&setup.device).unwrap();
        let pinned = CudaResource::new(&memory, MemoryKind::Pinned).unwrap();
        let resource = LimitingResource::new(LimitingResource::new(pinned, 2 << 20), 1 << 20);
        let (segment, there) = (resource.allocate_segment(BYTES).unwrap(), setup.device(BYTES));
        segment.write().unwrap().fill(6);
        let gate = Gate::before(&setup.device, &[&stream]);
        let copied = stream.copy_from_host_async(&segment, &there);
        drop((segment, resource));
        assert_eq!((memory.resource_counts().allocations, memory.resource_counts().pending_free), (1, 1));
        gate.open();
        copied.wait().unwrap();
        let back = setup.pinned(&vec![0; BYTES]);
        stream.copy_to_host_async(&there, &back).wait().unwrap();
        assert!(back.read().unwrap().iter().all(|byte| *byte == 6));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
        drop((there, back, stream, memory));
        setup.finish();
    });
}

#[test]
fn registered_alias_is_ordered_with_its_buffer() {
    watched(|| {
        let setup = Setup::new();
        let memory = Arc::new(CudaMemoryManager::new(&setup.device).unwrap());
        let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
        let stream = CudaStream::new(&setup.device).unwrap();
        let (content, there) = (noise(BYTES, 9), setup.device(BYTES));
        stream.copy_from_host_async(&setup.pinned(&content), &there).wait().unwrap();
        let (target, _) = heap(BYTES, true);
        // Registered once, so that the copy engine copies to it.
        drop(cache.register(&target).unwrap());
        drop(stream.copy_to_host_async(&there, &target));
        let twin = cache.register(&target).unwrap();
        assert!(*twin.read().unwrap() == content[..]);
        drop((twin, target, there, cache, stream));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
        drop(memory);
        setup.finish();
    });
}

#[test]
fn foreign_memory_stays_registered_for_work_of_any_alias() {
    watched(|| {
        let setup = Setup::new();
        let memory = Arc::new(CudaMemoryManager::new(&setup.device).unwrap());
        let cache = RegistrationCache::new(&memory, u64::MAX).unwrap();
        let stream = CudaStream::new(&setup.device).unwrap();
        let (owner, freed) = heap(BYTES, true);
        owner.write().unwrap().fill(4);
        let (address, there) = (owner.host_address().unwrap(), setup.device(BYTES));
        // SAFETY: the owner outlives the registration and is not used meanwhile.
        let foreign = || unsafe { over(address, BYTES, true) };
        let twin = || cache.register(&foreign()).unwrap();
        drop(twin());
        let second = twin();
        assert_eq!(cache.statistics().hits, 1, "it is the same registration");
        let gate = Gate::before(&setup.device, &[&stream]);
        let copied = stream.copy_from_host_async(&second, &there);
        drop(second);
        assert_eq!(cache.forget(&foreign()).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!((cache.trim().unwrap(), cache.statistics().registrations), (0, 1));
        gate.open();
        copied.wait().unwrap();
        // Gates of other tests may defer the end of a registration that is idle.
        while let Err(error) = cache.forget(&foreign()) {
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            std::thread::yield_now();
        }
        drop(owner);
        assert_eq!(freed.load(Ordering::SeqCst), 1);
        drop((there, cache, stream));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
        drop(memory);
        setup.finish();
    });
}
