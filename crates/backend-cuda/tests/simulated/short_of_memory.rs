//! `allocate` on a device short of memory: releases cached memory first, and waits only if that cannot deadlock.

use transload_core::{
    Backend, ErrorKind, Fence, MemoryKind, Operation, Pattern, RawBuffer, StreamPriority, Timing,
    WorkloadType, submit,
};
use transload_cuda_sim::harness;
use transload_streams::CudaStream;

use crate::serving::{Elsewhere, MIB, address, finish, open, watched};

#[test]
fn short_of_memory_buffer_reuses_memory_in_flight() {
    watched(no_other_memory);
}

fn no_other_memory() {
    let test = harness::device_with(|builder| builder.total_memory(8 * MIB).record_accesses(true))
        .unwrap()
        .end_check();
    let (backend, device) = open(&test);
    let queue = backend.lease_queue(device, StreamPriority::Normal, WorkloadType::Memory).unwrap();
    let back = backend.allocate(device, MemoryKind::Pinned, 5 * MIB).unwrap();
    for round in 1..20_u8 {
        // The only memory that there is.
        let there = backend.allocate(device, MemoryKind::Device, 5 * MIB).unwrap();
        let fill = Operation::Fill { dst: &there, pattern: Pattern::U8(round) };
        submit(&*queue, &fill, Timing::Off).unwrap();
        submit(&*queue, &Operation::Copy { src: &there, dst: &back }, Timing::Off).unwrap();
        drop(there);
        if round % 5 == 0 {
            assert!(back.read().unwrap().iter().all(|byte| *byte == round));
        }
    }
    drop((back, queue));
    finish(test, backend);
}

#[test]
fn cached_memory_is_released_for_other_requests() {
    let test = harness::device_with(|builder| builder.total_memory(32 * MIB)).unwrap().end_check();
    let (backend, device) = open(&test);
    let keep = || {
        let few = [7, 7, 7].map(|mib| backend.allocate(device, MemoryKind::Device, mib * MIB).unwrap());
        drop(few);
        assert!(backend.resource_counts().bytes >= 21 * MIB as u64, "kept: {}", backend.resource_counts());
    };
    keep();
    drop(backend.allocate(device, MemoryKind::Unified, 20 * MIB).unwrap());
    keep();
    drop(backend.allocate(device, MemoryKind::Device, 20 * MIB).unwrap());
    keep();
    drop(backend.allocate(device, MemoryKind::Device, 15 * MIB).unwrap());
    backend.drain().unwrap();
    keep();
    let stream = CudaStream::new(backend.device(test.ordinal()).unwrap()).unwrap();
    let allocator = backend.allocator(test.ordinal()).unwrap();
    drop(allocator.allocate_buffer(&stream, 20 * MIB).unwrap());
    drop(stream);
    finish(test, backend);
}

#[test]
fn sibling_cache_is_released_before_reuse_in_flight() {
    watched(kept_beside);
}

fn kept_beside() {
    let test = harness::device_with(|builder| builder.total_memory(32 * MIB)).unwrap().end_check();
    let (backend, device) = open(&test);
    let stream = CudaStream::new(backend.device(test.ordinal()).unwrap()).unwrap();
    let first = backend.allocate(device, MemoryKind::Device, 7 * MIB).unwrap();
    drop(backend.allocator(test.ordinal()).unwrap().allocate_buffer(&stream, 20 * MIB).unwrap());
    let elsewhere = Elsewhere::new();
    elsewhere.uses(&first);
    drop(first);
    let next = backend.allocate(device, MemoryKind::Device, 7 * MIB).unwrap();
    assert!(next.in_flight().unwrap_or_default().iter().all(Fence::is_known_complete), "behind other work");
    elsewhere.open();
    drop((next, stream));
    finish(test, backend);
}

#[test]
fn short_of_memory_does_not_wait_for_own_work() {
    watched(not_waited_for);
}

fn not_waited_for() {
    let test = harness::device_with(|builder| builder.total_memory(32 * MIB)).unwrap().end_check();
    let (backend, device) = open(&test);
    let stream = CudaStream::new(backend.device(test.ordinal()).unwrap()).unwrap();
    drop(backend.allocator(test.ordinal()).unwrap().allocate_buffer(&stream, MIB).unwrap());
    for kept in [18 * MIB, 9 * MIB] {
        let elsewhere = Elsewhere::new();
        let used: Vec<RawBuffer> = (0..18 * MIB / kept)
            .map(|_| backend.allocate(device, MemoryKind::Device, kept).unwrap())
            .collect();
        used.iter().for_each(|buffer| elsewhere.uses(buffer));
        drop(used);
        for kind in [MemoryKind::Device, MemoryKind::Unified] {
            let refused = backend.allocate(device, kind, 20 * MIB).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
        }
        elsewhere.open();
        drop(backend.allocate(device, MemoryKind::Device, 20 * MIB).unwrap());
        backend.drain().unwrap();
    }
    drop(stream);
    finish(test, backend);
}

#[test]
fn pinned_cache_stays_when_device_memory_is_short() {
    let test = harness::device_with(|builder| builder.total_memory(32 * MIB)).unwrap().end_check();
    let (backend, device) = open(&test);
    let was = address(&backend.allocate(device, MemoryKind::Pinned, 3 * MIB).unwrap());
    for kind in [MemoryKind::Device, MemoryKind::Unified] {
        drop([9, 9].map(|mib| backend.allocate(device, MemoryKind::Device, mib * MIB).unwrap()));
        drop(backend.allocate(device, kind, 20 * MIB).unwrap());
        assert_eq!(backend.allocate(device, kind, 40 * MIB).unwrap_err().kind(), ErrorKind::OutOfMemory);
    }
    let trace = transload_cuda_sys::trace::start();
    let again = backend.allocate(device, MemoryKind::Pinned, 3 * MIB).unwrap();
    let calls = trace.calls_of_this_thread();
    assert!(address(&again) == was && calls.is_empty(), "{calls:?}");
    drop((trace, again));
    finish(test, backend);
}
