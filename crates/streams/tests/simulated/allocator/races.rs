//! Streams and allocators dropped while other threads reuse their memory, which must not still be in use.

use std::sync::{Arc, Mutex, atomic::AtomicU32};

use transload_core::{
    DeviceId, Error, ErrorKind, MemoryInfo, MemoryKind, MemoryShortage, Pattern, Place, RawBuffer, Result,
};
use transload_memory::{CudaResource, LimitingResource, MemoryResource};
use transload_streams::{CudaStream, StreamOrderedAllocator};

use super::{PollHook, allocator, fill, fixture, rendezvous, spin};
use crate::{builder, within};

const MIB: usize = 1 << 20;
const QUARTER: usize = MIB / 4;

#[test]
fn late_streams_memory_is_not_coalesced_without_a_wait() {
    within(|| {
        for nth in 1..6 {
            let sim = builder().record_accesses(true).build(); // Unchecked: foreign work that never completes keeps memory.
            let (device, memory) = fixture(&sim);
            let allocator = allocator(&memory);
            let [one, two, three] = [(); 3].map(|()| CudaStream::new(&device).unwrap());
            let gated = allocator.allocate_buffer(&one, QUARTER / 2).unwrap();
            let _between = allocator.allocate_buffer(&one, QUARTER / 2).unwrap();
            let held = allocator.allocate_buffer(&one, 3 * QUARTER).unwrap();
            let hook = PollHook::new();
            hook.uses(&gated);
            drop(gated);
            hook.run_at(nth, {
                let (allocator, three) = (allocator.clone(), three.clone());
                move || {
                    drop(held);
                    if let Ok(buffer) = allocator.allocate_buffer(&three, 3 * QUARTER) {
                        for value in 0..20 {
                            drop(three.memset_async(&buffer, Pattern::U8(value)));
                        }
                    }
                }
            });
            if let Ok(buffer) = allocator.allocate_buffer(&two, 3 * QUARTER) {
                drop(two.memset_async(&buffer, Pattern::U8(2)));
            }
            two.synchronize().unwrap();
            three.synchronize().unwrap();
            let races = sim.races();
            assert!(races.is_empty(), "hook {nth} times: {}", races[0]);
        }
    });
}

#[test]
fn request_blocked_only_by_another_backend_is_refused() {
    within(|| {
        let sim = builder().build(); // Unchecked: foreign work that never completes keeps memory.
        let (device, memory) = fixture(&sim);
        let allocator = allocator(&memory);
        let stream = CudaStream::new(&device).unwrap();
        let buffer = allocator.allocate_buffer(&stream, MIB).unwrap();
        let hook = PollHook::new();
        hook.uses(&buffer);
        drop(buffer);
        let error = allocator.allocate_for_stream(&stream, MIB).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    });
}

#[test]
fn free_racing_a_recorded_users_drop_waits_for_its_work() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (device, memory) = fixture(&sim);
        let allocator = allocator(&memory);
        let own = CudaStream::new(&device).unwrap();
        for round in 0..1500 {
            let user = CudaStream::new(&device).unwrap();
            let block = allocator.allocate_for_stream(&own, MIB).unwrap();
            fill(&user, block);
            allocator.record_use(block, &user).unwrap();
            let at = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let user = user;
                    rendezvous(&at);
                    drop(user);
                });
                rendezvous(&at);
                spin((round % 40) * 20);
                allocator.free_on(block, &own).unwrap();
            });
            let next = allocator.allocate_for_stream(&own, MIB).unwrap();
            fill(&own, next);
            allocator.free_on(next, &own).unwrap();
            own.synchronize().unwrap();
            let races = sim.races();
            assert!(races.is_empty(), "round {round}: {}", races[0]);
        }
    });
}

#[test]
fn allocator_and_stream_dropped_at_once_free_after_work() {
    within(|| {
        let sim = builder().record_accesses(true).checked();
        let (device, memory) = fixture(&sim);
        for round in 0..2000_u32 {
            let allocator = allocator(&memory);
            let user = CudaStream::new(&device).unwrap();
            let buffer = allocator.allocate_buffer(&user, MIB).unwrap();
            for value in 0..6 {
                drop(user.memset_async(&buffer, Pattern::U8(value)));
            }
            drop(buffer);
            let at = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let user = user;
                    rendezvous(&at);
                    spin(round / 40 % 40);
                    drop(user);
                });
                rendezvous(&at);
                spin(round % 40);
                drop(allocator);
            });
            let races = sim.races();
            assert!(races.is_empty(), "round {round}: {}", races[0]);
            memory.drain().unwrap();
        }
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    });
}

#[test]
fn drain_returns_memory_of_a_dropped_limited_resource() {
    within(|| {
        let sim = builder().checked();
        let (device, memory) = fixture(&sim);
        let upstream =
            LimitingResource::new(CudaResource::new(&memory, MemoryKind::Device).unwrap(), 64 << 20);
        let allocator = StreamOrderedAllocator::new(upstream);
        let stream = CudaStream::new(&device).unwrap();
        let buffer = allocator.allocate_buffer(&stream, MIB).unwrap();
        for value in 0..20 {
            drop(stream.memset_async(&buffer, Pattern::U8(value)));
        }
        drop((buffer, stream, allocator));
        memory.drain().unwrap();
        assert!(memory.resource_counts().is_empty(), "{}", memory.resource_counts());
    });
}

/// A resource that calls an allocator from its own `allocate_segment`, once, and has no memory.
struct ReentrantResource {
    of: CudaResource,
    asks: Mutex<Option<(StreamOrderedAllocator, CudaStream)>>,
}

// SAFETY: it returns no segment.
unsafe impl MemoryResource for ReentrantResource {
    fn place(&self) -> Place {
        self.of.place()
    }

    fn device(&self) -> Option<DeviceId> {
        self.of.device()
    }

    fn allocate_segment(&self, bytes: usize) -> Result<RawBuffer> {
        let asks = self.asks.lock().unwrap().take();
        if let Some((allocator, stream)) = asks {
            assert!(allocator.allocate_for_stream(&stream, bytes).is_err());
        }
        let shortage = MemoryShortage { requested: bytes as u64, free: None, total: None };
        Err(Error::out_of_memory(self.place(), shortage))
    }

    fn trim(&self) -> Result<()> {
        Ok(())
    }

    fn info(&self) -> Result<MemoryInfo> {
        self.of.info()
    }
}

#[test]
fn request_from_within_the_upstream_does_not_deadlock() {
    within(|| {
        let sim = builder().checked();
        let (device, memory) = fixture(&sim);
        let of = CudaResource::new(&memory, MemoryKind::Device).unwrap();
        let resource = Arc::new(ReentrantResource { of, asks: Mutex::new(None) });
        let allocator = StreamOrderedAllocator::new(Arc::clone(&resource));
        let stream = CudaStream::new(&device).unwrap();
        *resource.asks.lock().unwrap() = Some((allocator.clone(), stream.clone()));
        let error = allocator.allocate_for_stream(&stream, MIB).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert!(resource.asks.lock().unwrap().is_none(), "it hook");
    });
}
