//! Readiness checks and hints by raw address cause no extra driver calls later.

use std::{collections::BTreeMap, time::Duration};

use transload_core::{MemoryKind, Queue, RawBuffer, StreamPriority, WorkloadType};
use transload_cuda_sys::trace;
use transload_memory::{
    CudaDevice, CudaMemoryManager, ManagedMemoryHints, MemoryLocation, PrefetchEntry, PrefetchPlan,
};
use transload_streams::{AdvancedStreamPool, AllocationStrategy, CudaStream};

use crate::{builder, within};

const BYTES: usize = 4096;
const COPIES: usize = 64;

/// Counts the driver calls of successive copies and of the wait after them.
fn calls_of_copies(
    stream: &CudaStream,
    host: &RawBuffer,
    there: &RawBuffer,
) -> BTreeMap<&'static str, usize> {
    stream.synchronize().unwrap();
    let trace = trace::start();
    for _ in 0..COPIES {
        drop(stream.copy_from_host_async(host, there));
    }
    let mut counts = BTreeMap::new();
    trace.calls_of_this_thread().iter().for_each(|call| *counts.entry(call.name).or_default() += 1);
    counts
}

#[test]
fn readiness_checks_leave_copies_as_cheap_as_before() {
    within(|| {
        let sim = builder().checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let host = memory.allocate(MemoryKind::Pinned, BYTES).unwrap();
        let there = memory.allocate(MemoryKind::Device, BYTES).unwrap();
        let pool =
            AdvancedStreamPool::new_with_strategy(&device, 1, AllocationStrategy::LoadBalanced).unwrap();
        let stream = CudaStream::clone(&pool.lease(StreamPriority::Normal, WorkloadType::Memory).unwrap());
        // Warm-up: creates events and the thread's context.
        calls_of_copies(&stream, &host, &there);
        let before = calls_of_copies(&stream, &host, &there);
        let looks: [(&str, &dyn Fn()); 3] = [
            ("has_ready_streams", &|| assert!(pool.has_ready_streams().is_ok())),
            ("has_ready_streams of a busy stream", &|| {
                drop(stream.copy_from_host_async(&host, &there));
                assert!(pool.has_ready_streams().is_ok());
            }),
            ("wait_for_any_ready", &|| drop(pool.wait_for_any_ready(Duration::from_secs(60)).unwrap())),
        ];
        for (name, look) in looks {
            look();
            assert_eq!(calls_of_copies(&stream, &host, &there), before, "{name}");
        }
    });
}

#[test]
fn raw_address_hints_leave_copies_as_cheap_as_before() {
    within(|| {
        let sim = builder().checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let host = memory.allocate(MemoryKind::Pinned, BYTES).unwrap();
        let there = memory.allocate(MemoryKind::Device, BYTES).unwrap();
        let unified = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
        let address = unified.device_address().unwrap();
        let stream = CudaStream::new(&device).unwrap();
        calls_of_copies(&stream, &host, &there);
        let before = calls_of_copies(&stream, &host, &there);
        ManagedMemoryHints::for_buffer(&device, address, 1 << 20)
            .unwrap()
            .prefetch_to(None, &stream)
            .unwrap();
        assert_eq!(calls_of_copies(&stream, &host, &there), before, "ManagedMemoryHints");
        let entry = PrefetchEntry { ptr: address, byte_size: 1 << 20, device_ordinal: PrefetchEntry::HOST };
        PrefetchPlan::new().add(entry).execute(&stream).unwrap();
        assert_eq!(calls_of_copies(&stream, &host, &there), before, "PrefetchPlan");
    });
}

#[test]
fn raw_hint_on_another_threads_default_stream_is_refused() {
    within(|| {
        let sim = builder().checked();
        let device = CudaDevice::new(sim.ordinal()).unwrap();
        let memory = CudaMemoryManager::new(&device).unwrap();
        let unified = memory.allocate(MemoryKind::Unified, 1 << 20).unwrap();
        let address = unified.device_address().unwrap();
        let stream = CudaStream::per_thread_default(&device).unwrap();
        let hints = ManagedMemoryHints::for_buffer(&device, address, 1 << 20).unwrap();
        hints.prefetch_to(None, &stream).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let trace = trace::start();
                let entry =
                    PrefetchEntry { ptr: address, byte_size: 4096, device_ordinal: PrefetchEntry::HOST };
                let refused = [
                    hints.prefetch_to(MemoryLocation::Host, &stream).map_err(|error| error.kind()),
                    hints
                        .prefetch_range(0, 4096, MemoryLocation::Host, &stream)
                        .map_err(|error| error.kind()),
                    PrefetchPlan::new().add(entry).execute(&stream).map_err(|error| error.kind()),
                ];
                assert_eq!(stream.raw_handle(), None, "here the handle means another stream");
                let prefetched = trace.calls_of_this_thread();
                (refused, prefetched.iter().any(|call| call.name.starts_with("cuMemPrefetchAsync")))
            });
            let (refused, prefetched) = other.join().unwrap();
            assert_eq!(refused, [Err(transload_core::ErrorKind::InvalidArgument); 3]);
            assert!(!prefetched, "a hint reached the other thread's own default stream");
        });
        stream.synchronize().unwrap();
    });
}
